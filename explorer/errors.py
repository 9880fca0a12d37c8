"""What can go wrong in an exploration: wrong bounds, a broken rule, a scenario that cannot be replayed."""

from __future__ import annotations

import traceback
from pathlib import Path

from wsm.errors import BadInputError, InternalError, RefusedError, WsmError


class ScopeError(BadInputError):
    """A bound of an exploration is out of range."""

    def __init__(self, *, bound: str, value: str, fix: str) -> None:
        super().__init__(
            f"the bound {bound} cannot be {value}; {fix}",
            bound=bound,
            value=value,
            fix=fix,
        )


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


class UnpackableError(InternalError):
    """A value of a world does not fit its packed form: the bounds are larger than the packing."""

    def __init__(self, *, field: str, value: object) -> None:
        super().__init__(
            f"{field} is {value!r}, which the packed worlds cannot hold; explore smaller bounds, or widen it",
            field=field,
            value=value,
        )


class GraphTooLargeError(RefusedError):
    """The bounds hold more worlds than can be kept with every move between them."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(
            f"there are more than {limit:,} worlds within these bounds; ask for smaller ones, "
            "or explore without the graph",
            limit=limit,
        )


class ScenarioError(BadInputError):
    """A scenario file is no scenario, or does not fit the protocol of this build."""

    def __init__(self, *, line: int, problem: str) -> None:
        super().__init__(
            f"line {line} of the scenario: {problem}; explore anew, and save what is found",
            line=line,
            problem=problem,
        )


class SearcherEndedError(InternalError):
    """A process of a partitioned search ended before its search did."""

    def __init__(self, *, searcher: int, code: int | None) -> None:
        super().__init__(
            f"process {searcher} of the search ended with code {code} before the search did; "
            "look at what it printed, or explore with one process",
            searcher=searcher,
            exit_code=code,
        )
