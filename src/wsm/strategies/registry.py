"""The one registry of load strategies, used by boot, update, wake-up, configurations and commands alike.

FastDeploy keeps one map for updates and one for reloads, and they drifted apart. wsm's own strategies stand
here as entry points do, by name and place, and are imported when they are named; one from outside is
announced by its package, or registered by the process that embeds wsm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wsm.errors import BadInputError, RefusedError, UnfitError
from wsm.named import NamedObjects, object_at
from wsm.strategies.strategy import Strategy
from wsm.typed import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


#: The group of entry points; each names an object, or a class that is called without arguments.
ENTRY_POINTS = "wsm.strategies"


def _entry_points() -> EntryPoints:
    from importlib import metadata  # noqa: PLC0415 - slow to import, and for names from outside alone

    return metadata.entry_points(group=ENTRY_POINTS)


def _announced(name: str) -> Strategy | None:
    """Import what installed packages announce under this name; None if none does.

    Raises
    ------
    RefusedError
        If packages announce different things, or it cannot be imported, or is a class that cannot be called.
    BadInputError
        If it is no strategy.
    """
    points = {point.value: point for point in _entry_points() if point.name == name}
    if not points:
        return None
    packages = ["an unnamed one" if each.dist is None else each.dist.name for each in points.values()]
    origins = [f"the package {of} ({place})" for of, place in zip(packages, points, strict=True)]
    if len(points) > 1:
        raise _taken(name, origins)
    (point,) = points.values()
    try:
        found = point.load()
        if isinstance(found, type):
            found = found()
    except Exception as error:  # what a package does when it is imported is its own
        reason = f"{type(error).__name__}: {error}"
        raise RefusedError(
            f"the package {packages[0]} announces the load strategy {name!r} as {point.value}, which fails: "
            f"{reason}; repair or remove the package where this process runs",
            code="strategy-import",
            name=name,
            entry_point=point.value,
            package=packages[0],
            reason=reason,
        ) from error
    return _check(name, found, origins[0])


def _taken(name: str, holders: Sequence[str]) -> RefusedError:
    return RefusedError(
        f"the name {name!r} of a load strategy is taken by {' and by '.join(holders)}; "
        "a name stands for one way on every rank: choose another, or remove what has it",
        code="strategy-taken",
        name=name,
        holders=tuple(holders),
    )


#: Every strategy of wsm, under the name that configuration and command line know it by.
STRATEGIES: Mapping[str, Strategy] = NamedObjects(
    {
        "ipc_snapshot": "wsm.strategies.snapshot.ipc_snapshot:IpcSnapshot",
        "ipc": "wsm.strategies.ipc.strategy:Ipc",
        "ipc_async": "wsm.strategies.buckets.ipc_async:IpcAsync",
        "delta": "wsm.strategies.delta.strategy:Delta",
        "rsync": "wsm.strategies.transports.by_version:Rsync",
        "gdr": "wsm.strategies.transports.by_version:Gdr",
    }
)

#: The sections of ``wsm.yaml`` that wsm's own strategies read, by their names there.
OWN_SECTIONS: Mapping[str, str] = {
    "snapshot": "wsm.strategies.snapshot.source:SnapshotConfig",
    "ipc": "wsm.strategies.ipc.source:IpcConfig",
    "ipc_async": "wsm.strategies.buckets.source:IpcAsyncConfig",
    "rsync": "wsm.strategies.transports.by_version:RsyncConfig",
    "delta": "wsm.strategies.delta.source:DeltaConfig",
    "mooncake": "wsm.strategies.mooncake.source:MooncakeConfig",
}


def own_section(name: str) -> type:
    """Import the type of a section of wsm's own."""
    kind: type = object_at(OWN_SECTIONS[name])
    return kind


def sections_read(name: str, strategy: Strategy) -> dict[str, type]:
    """Return the sections that the strategy called `name` reads: their types, by their names."""
    kinds = [own_section(kind) if isinstance(kind, str) else kind for kind in strategy.sections]
    return {_own_name(kind) or name: kind for kind in kinds}


def _own_name(kind: type | str) -> str | None:
    """Return the name of a section of wsm's own; None: it is of a strategy from outside."""
    if isinstance(kind, str):
        return kind
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in OWN_SECTIONS.items() if known == place), None)


#: Those from outside that this process knows: registered here, or announced and asked for once.
_from_outside: dict[str, Strategy] = {}


def register_strategy(name: str, strategy: Strategy) -> None:
    """Make a strategy known to this process, for configurations that name it, loads and previews.

    Other processes do not learn of it: for ranks that are processes of their own, and for the command line,
    announce it by an entry point.

    Parameters
    ----------
    name : str
        What ``strategy:`` names, and its own section is called.
    strategy : Strategy
        One object for all ranks and loads of this process.

    Raises
    ------
    RefusedError
        If there is a strategy of that name already, also one that an installed package only announces.
    BadInputError
        If it is no strategy.
    """
    _check(name, strategy, "this process")
    if name in STRATEGIES:
        raise _taken(name, ["wsm itself"])
    if name in _from_outside or name in _entry_points().names:
        raise _taken(name, ["another strategy from outside"])
    _from_outside[name] = strategy


def strategy_called(name: str) -> Strategy:
    """Return the strategy of that name; as :func:`find_strategy`.

    Raises
    ------
    BadInputError (``unknown-strategy``)
        If there is none.
    RefusedError, BadInputError
        As there.
    """
    strategy = find_strategy(name)
    if strategy is None:
        known = strategy_names()
        raise BadInputError(
            f"no load strategy is called {name!r}; use one of {', '.join(known)}",
            code="unknown-strategy",
            name=name,
            known=known,
        )
    return strategy


def find_strategy(name: str) -> Strategy | None:
    """Return the strategy of that name: wsm's own, a registered one, or one that a package announces.

    Installed packages are looked at only for a name that this process does not know yet; then the one that
    announces it is imported. None if there is none.

    Raises
    ------
    RefusedError, BadInputError
        If a package announces one that cannot be imported or is none, or two packages do.
    """
    strategy = STRATEGIES.get(name) or _from_outside.get(name)
    if strategy is None and (found := _announced(name)) is not None:
        strategy = _from_outside.setdefault(name, found)
    return strategy


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies that there are."""
    return tuple(sorted({*STRATEGIES, *_from_outside, *_entry_points().names}))


def strategy_for(name: str, source: object) -> Strategy:
    """Return the strategy called `name`, for a source of its type.

    Raises
    ------
    BadInputError
        If it does not load from such a source.
    wsm.errors.WsmError
        As :func:`strategy_called`.
    """
    strategy = strategy_called(name)
    if not isinstance(source, strategy.source_type):
        expected, found = strategy.source_type.__name__, type(source).__name__
        raise UnfitError(
            f"strategy {name} loads from a {expected}, not from a {found}",
            code="bad-source-type",
            strategy=name,
            expected=expected,
            found=found,
        )
    return strategy


def _check(name: object, thing: object, origin: str) -> Strategy:
    """Refuse what could not be used later, while it can still be said whose it is."""
    problem = ""
    if not isinstance(name, str) or not name or not name.isprintable():
        problem = "a name is a text that is not empty and can be printed"
    elif not isinstance(thing, Strategy):
        problem = f"it is {shown(thing)}"
    elif not isinstance(getattr(thing, "source_type", None), type):
        problem = "it has no source_type that is a type"
    elif not _are_sections(thing.sections):
        problem = f"its sections are {thing.sections!r}, not a sequence of dataclasses"
    elif len({kind for kind in thing.sections if _own_name(kind) is None}) > 1:
        problem = "it has more than one section of its own, and each would be called as the strategy is"
    else:
        return thing
    raise BadInputError(
        f"{origin} gives no load strategy {shown(name)}: {problem}; "
        "give an object of a class that derives from wsm.strategies.Strategy",
        code="not-a-strategy",
        name=shown(name),
        origin=origin,
        problem=problem,
    )


def _are_sections(found: object) -> bool:
    return isinstance(found, Sequence) and all(map(_is_section, found))


def _is_section(kind: object) -> bool:
    if isinstance(kind, str):
        return kind in OWN_SECTIONS
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)
