"""What can go wrong in an exploration: wrong bounds, a broken rule, a scenario that cannot be replayed."""

from __future__ import annotations

import traceback
from pathlib import Path

from wsm.errors import BadInputError, InternalError, WsmError


class ScopeError(BadInputError):
    """Bounds of an exploration are none, or out of range."""


class RuleBrokenError(InternalError):
    """A move of the explored group breaks one of its rules: the protocol, or a table, is wrong."""

    def __init__(self, *, rule: str, seen: str) -> None:
        super().__init__(f"{seen}, but {rule}", rule=rule, seen=seen)


def broken_by(error: Exception) -> str:
    """Say which rule an error breaks that was raised in a move.

    Whatever the code of the group raises, it raised for a world that can be reached.
    """
    if isinstance(error, WsmError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return f"{type(error).__name__} ({error}) is raised in {place}, but every world has an answer"


class ScenarioError(BadInputError):
    """A scenario file is no scenario, or does not fit the protocol of this build."""

    def __init__(self, *, line: int, problem: str) -> None:
        super().__init__(
            f"line {line} of the scenario: {problem}; explore anew, and save what is found",
            line=line,
            problem=problem,
        )
