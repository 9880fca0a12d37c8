"""What came of one case. Plain data, JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass
class Result:
    """One case and what came of it; filled while it is played.

    Attributes
    ----------
    case : str
        The case's name, which ``python -m campaign --case`` repeats it by.
    outcome : str
        ``old version``, ``new version``, ``CLEARED``, ``FAULTED``, ``restarted`` ...: where the group ended.
    error : str
        Type of the error that the caller was told, or empty.
    named : list of int
        The ranks that the error names.
    said : str
        The message, or the receipt's sentence.
    detected_ms : float or None
        From the fault until the caller was told; of stops: from the caller's deadline.
    recovered_s : float or None
        From the death until the group was whole again and held what it must.
    seconds : float
        How long the case took.
    checked : int
        Steps, or tokens, that were held against the version that should have made them.
    leftovers : list of str
        Files and processes that outlived the group.
    problems : list of str
        What must not be; empty where the case came out right.
    """

    case: str
    outcome: str = ""
    error: str = ""
    named: list[int] = field(default_factory=list)
    said: str = ""
    detected_ms: float | None = None
    recovered_s: float | None = None
    seconds: float = 0.0
    checked: int = 0
    leftovers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether everything came out as it must."""
        return not self.problems and not self.leftovers

    def require(self, holds: object, problem: str) -> None:
        """Note `problem` unless it `holds`."""
        if not holds:
            self.problems.append(problem)

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Result:
        """Read what :meth:`to_line` has written."""
        return cls(**json.loads(line))


def named_ranks(error: BaseException | None) -> list[int]:
    """Return the ranks that an error of a controller names, by its attributes."""
    context = getattr(error, "__dict__", {})
    found: set[int] = set()
    for key in ("rank", "ranks", "waiting", "peers", "participants"):
        value = context.get(key)
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, Sequence | dict | set | frozenset) and not isinstance(value, str):
            found.update(item for item in value if isinstance(item, int))
    return sorted(found)
