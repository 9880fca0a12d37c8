"""A text that is shown anew when it changes: in place on a terminal, one after the other elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from wsm.cli._base import show_text
from wsm.printable import printable_lines

#: Most drawings per second; words change faster than a person reads.
_PER_SECOND = 8


class Screen:
    """Where the text goes; a context manager around the time that it is shown."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False)
        self._live: Live | None = None
        self._last = ""

    def __enter__(self) -> Screen:  # noqa: PYI034 - typing has Self from Python 3.11 on
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=_PER_SECOND, auto_refresh=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def show(self, text: str) -> None:
        """Show `text` instead of the last one."""
        if text == self._last:
            return
        self._last = text
        if self._live is not None:
            self._live.update(Text(printable_lines(text)))
        else:
            show_text(text)
