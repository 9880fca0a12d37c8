"""Strategies that installed packages announce, by entry points of the group ``wsm.strategies``.

Reads what is installed beside wsm each time it is asked, and imports a package only when its strategy is
asked for. Knows no strategy by itself, and keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wsm.strategies import errors

if TYPE_CHECKING:  # it takes longer to import than all strategies, and few processes need it
    from importlib.metadata import EntryPoint, EntryPoints

#: The group of entry points; each names an object, or a class that is called without arguments.
ENTRY_POINTS = "wsm.strategies"


class Announced(NamedTuple):
    """What an entry point gives, not checked, and who announces it, for messages."""

    strategy: object
    origin: str


def announced_names() -> set[str]:
    """Return the names of all that are announced. Imports none."""
    return {point.name for point in _entry_points()}


def announced_strategy(name: str) -> Announced | None:
    """Import what is announced under this name; None if nothing is.

    Raises
    ------
    RefusedError
        If packages announce different things.
    RefusedError
        If it cannot be imported, or is a class that cannot be called.
    """
    points = {point.value: point for point in _entry_points() if point.name == name}
    if not points:
        return None
    if len(points) > 1:
        raise errors.strategy_taken(name=name, holders=[_origin(point) for point in points.values()])
    (point,) = points.values()
    try:
        found = point.load()
        if isinstance(found, type):
            found = found()
    except Exception as error:  # what a package does when it is imported is its own
        reason = f"{type(error).__name__}: {error}"
        raise errors.strategy_import(
            name=name, entry_point=point.value, package=_package(point), reason=reason
        ) from error
    return Announced(found, _origin(point))


def _package(point: EntryPoint) -> str:
    return "an unnamed one" if point.dist is None else str(point.dist.name)


def _origin(point: EntryPoint) -> str:
    return f"the package {_package(point)} ({point.value})"


def _entry_points() -> EntryPoints:
    from importlib import metadata  # noqa: PLC0415 - see above

    return metadata.entry_points(group=ENTRY_POINTS)
