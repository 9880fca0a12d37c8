"""What a rule finds about a group, and what it advises to do next. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Parameters
    ----------
    text : str
        A sentence.
    commands : tuple of str
        The shell commands in it, in their order; what follows a word in capitals is the reader's to fill in.
    """

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Parameters
    ----------
    code : str
        Which rule.
    state : str
        What the group does or holds, as the end of a sentence about it; without times.
    because : str
        Why; empty where there is nothing to say.
    advice : tuple of Advice
        What to do next.
    ranks : tuple of int
        The ranks that it is about.
    before : int or None
        The version that served before, where none does now.
    """

    code: str
    state: str
    because: str = ""
    advice: tuple[Advice, ...] = ()
    ranks: tuple[int, ...] = ()
    before: str | None = None

    @property
    def sentence(self) -> str:
        """State, cause, and what served before, as one clause."""
        because = f": {self.because}" if self.because else ""
        return f"{self.state}{because}{self._served}"

    @property
    def short(self) -> str:
        """The same without the cause, for errors, which tell that themselves."""
        return f"{self.state}{self._served}"

    @property
    def _served(self) -> str:
        return "" if self.before is None else f"; version {self.before} served before"
