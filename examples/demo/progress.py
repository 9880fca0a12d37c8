"""What the demo shows while it runs: a live table on a terminal, one plain line per step elsewhere.

Fits 80 columns. Knows records and phase names, nothing about where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.report import Report, StepRecord
from wsm.printable import printable

_RECENT = 8
_SPARK_WIDTH = 60
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = ".:-=+*%#"
_TIMES = ("generate", "clear", "train", "publish", "update", "pause")
_HOT_TIMES = ("generate", "train", "publish", "update", "staging", "pause")


class RunProgress:
    """Shows one run of the loop; a context manager around it.

    Parameters
    ----------
    title : str
        First line: what runs.
    steps : int
        How many steps there will be.
    console : rich.console.Console, optional
        Where to; standard output by default. Live display only where it is a terminal.
    hot : bool
        Whether updates are hot: then nothing is cleared, and staging is shown.
    """

    def __init__(self, title: str, steps: int, console: Console | None = None, *, hot: bool = False) -> None:
        self._console = console or Console(highlight=False, markup=False)
        self._title = title
        self._steps = steps
        self._records: list[StepRecord] = []
        self._times = _HOT_TIMES if hot else _TIMES
        self._phase = "starting"
        self._live: Live | None = None

    def __enter__(self) -> RunProgress:  # noqa: PYI034 - typing has Self from Python 3.11 on
        """Show the title."""
        if self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, refresh_per_second=8, transient=False)
            self._live.__enter__()
        else:
            self._line(self._title)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last display standing."""
        if self._live is not None:
            self._phase = "stopped" if error is not None else "done"
            self._live.update(self._table())
            self._live.__exit__(kind, error, trace)

    def phase(self, name: str) -> None:
        """Say what the loop does now."""
        self._phase = name
        if self._live is not None:
            self._live.update(self._table())

    def finished(self, record: StepRecord) -> None:
        """Show one finished step."""
        self._records.append(record)
        if self._live is not None:
            self._live.update(self._table())
            return
        version = "-" if record.version is None else record.version
        left_out = ("generate", "publish")
        times = [f"{name} {_short(record, name)}" for name in self._times if name not in left_out]
        self._line(
            f"step {record.step}/{self._steps}  version {version}  reward {record.reward:.2f}  "
            f"{'  '.join(times)} ms"
        )

    def summary(self, report: Report, files: Sequence[str]) -> None:
        """Say how the run ended and where its results are."""
        totals = report.totals()
        versions = len(totals["tokens_per_version"])
        self._line(
            f"reward {totals['reward_first_five']:.2f} -> {totals['reward_last_five']:.2f} "
            f"(first and last five of {totals['steps']} steps) in {totals['seconds']:.1f} s"
        )
        self._line(
            f"{totals['tokens']} tokens by {versions} version{'' if versions == 1 else 's'}, "
            f"{totals['mixed_version_steps']} steps of mixed versions, "
            f"median pause {totals['median_ms']['pause']:.{2 if self._times is _HOT_TIMES else 0}f} ms"
        )
        if totals["served_meanwhile"]:
            self._line(
                f"{totals['served_meanwhile']} tokens for others while it trained, staged and switched; "
                f"median staging {totals['median_ms']['staging']:.0f} ms"
            )
        for file in files:
            self._line(f"  {file}")

    def _line(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=True, highlight=False, markup=False)

    def _table(self) -> RenderableType:
        done = len(self._records)
        head = Text(
            f"{self._title}  step {min(done + 1, self._steps)}/{self._steps}: {self._phase}", style="bold"
        )
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("step", "version", "reward", *self._times):
            table.add_column(column, justify="right")
        for record in self._records[-_RECENT:]:
            table.add_row(
                str(record.step),
                "-" if record.version is None else str(record.version),
                f"{record.reward:.2f}",
                *(f"{_short(record, name)} ms" for name in self._times),
            )
        blocks = _ASCII_BLOCKS if self._console.options.ascii_only else _BLOCKS
        return Group(head, Text(f"reward {sparkline([r.reward for r in self._records], blocks)}"), table)


def _short(record: StepRecord, name: str) -> str:
    milliseconds: float = getattr(record, f"{name}_ms")
    return f"{milliseconds:.1f}" if 0 < milliseconds < 10 else f"{milliseconds:.0f}"


def sparkline(values: Sequence[float], blocks: str = _BLOCKS) -> str:
    """Draw values between 0 and 1 as one character each, averaged down to a width that fits a terminal."""
    per = -(-len(values) // _SPARK_WIDTH) or 1
    means = [sum(values[i : i + per]) / len(values[i : i + per]) for i in range(0, len(values), per)]
    top = len(blocks) - 1
    return "".join(blocks[min(top, max(0, round(value * top)))] for value in means)
