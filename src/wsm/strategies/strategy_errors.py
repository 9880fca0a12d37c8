"""What can be wrong with a strategy itself: its name, where it comes from, what it is, what it is asked for.

All of it is refused before a version is looked for. Knows no strategy and no files.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, RefusedError
from wsm.strategies.file_errors import listed


class UnknownStrategyError(BadInputError):
    """No strategy of that name is wsm's own, was registered, or is announced by an installed package."""

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no load strategy is called {name!r}; use one of {', '.join(known)}",
            name=name,
            known=tuple(known),
        )


class SourceTypeError(BadInputError):
    """A strategy was given another strategy's source."""

    def __init__(self, *, strategy: str, expected: str, found: str) -> None:
        super().__init__(
            f"strategy {strategy} loads from a {expected}, not from a {found}",
            strategy=strategy,
            expected=expected,
            found=found,
        )


class StrategyTakenError(RefusedError):
    """Another strategy has this name already; `holders` says which, or which two."""

    def __init__(self, *, name: str, holders: Sequence[str]) -> None:
        super().__init__(
            f"the name {name!r} of a load strategy is taken by {' and by '.join(holders)}; "
            "a name stands for one way on every rank: choose another, or remove what has it",
            name=name,
            holders=tuple(holders),
        )


class NotAStrategyError(BadInputError):
    """What was registered or announced under a name is not what a strategy must be."""

    def __init__(self, *, name: str, origin: str, problem: str) -> None:
        super().__init__(
            f"{origin} gives no load strategy {name!r}: {problem}; "
            "give an object of a class that derives from wsm.strategies.Strategy",
            name=name,
            origin=origin,
            problem=problem,
        )


class StrategyImportError(RefusedError):
    """A package announces a strategy of this name and cannot be imported, or its class not be called."""

    def __init__(self, *, name: str, entry_point: str, package: str, reason: str) -> None:
        super().__init__(
            f"the package {package} announces the load strategy {name!r} as {entry_point}, which fails: "
            f"{reason}; repair or remove the package where this process runs",
            name=name,
            entry_point=entry_point,
            package=package,
            reason=reason,
        )


class TransferModeError(RefusedError):
    """The transfer mode that a command asked for is not available here. Nothing was changed."""

    def __init__(self, *, mode: str, problem: str, available: Sequence[str]) -> None:
        super().__init__(
            f"the transfer mode {mode!r} cannot be used: {problem}; "
            f"available are {listed(available) or 'none'}",
            mode=mode,
            problem=problem,
            available=tuple(available),
        )
