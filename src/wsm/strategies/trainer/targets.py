"""Targets of a fleet, beside the versions: each a file of its own, whose number is free once and never again.

``targets/000000000012.json`` is written whole under another name and linked to its own only if that is free:
``link`` is atomic on NFS, too, so of two callers one has the number. ``target.json`` is a copy for readers,
and decides nothing. ``targets/served_at`` has the address at which the fleet is served.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path

from wsm.errors import BadInputError, coded
from wsm.payload import PayloadError, decode, encode
from wsm.states.fleet import FleetTarget, is_target_read
from wsm.strategies.files.atomic_file import replace_file, sync_directory, write_new

TARGETS_DIRECTORY = "targets"
_COPY = "target.json"
_ADDRESS = "served_at"
_NAME = re.compile(r"([0-9]{12})\.json")


@coded("bad-target")
def bad_target(*, file: str, problem: str) -> BadInputError:
    """A target cannot be read."""
    return BadInputError(f"the target {file} cannot be read: {problem}; set the next one")


def newest_target(store: Path, known: FleetTarget | None = None) -> FleetTarget | None:
    """Return the target with the highest number; None without any. Blocks.

    Parameters
    ----------
    store : path
        Where the targets lie.
    known : FleetTarget or None
        What was read there before: a store that shows an older one is not whole.

    Raises
    ------
    BadInputError
        If it is damaged, or older than what is known (code ``bad-target``).
    OSError
        If the store cannot be read.
    """
    numbers = _numbers(store)
    found = _read(store, max(numbers)) if numbers else None
    if not is_target_read(known, found):
        raise bad_target(file=str(store), problem="the store shows an older one than it did")
    return found


def set_target(store: Path, target: FleetTarget) -> bool:
    """Give a target its number; False: that is taken, or was passed. Blocks; raises OSError."""
    place = store / TARGETS_DIRECTORY
    place.mkdir(exist_ok=True)
    if target.generation <= max(_numbers(store), default=0):
        return False
    whole = place / f".{target.generation:012}.{secrets.token_hex(4)}"
    try:
        write_new(whole, encode(target))
        try:
            _path(store, target.generation).hardlink_to(whole)
        except FileExistsError:
            return False
    finally:
        whole.unlink(missing_ok=True)
    sync_directory(place)
    replace_file(store / _COPY, encode(target))
    return True


def set_address(store: Path, url: str) -> None:
    """Say where the fleet is served. Blocks; raises OSError."""
    (store / TARGETS_DIRECTORY).mkdir(exist_ok=True)
    replace_file(store / TARGETS_DIRECTORY / _ADDRESS, url.encode())


def address(store: Path) -> str:
    """Return where the fleet was served last; the store, if it never was, or that cannot be read. Blocks."""
    with suppress(OSError):
        return (store / TARGETS_DIRECTORY / _ADDRESS).read_text("utf-8", "replace")
    return str(store)


def labels_named(store: Path) -> frozenset[str]:
    """Return the labels that the newest two targets name. Blocks; raises OSError.

    One that is damaged names nothing, and the one before it counts.
    """
    named: list[frozenset[str]] = []
    for number in sorted(_numbers(store), reverse=True):
        with suppress(BadInputError):
            named.append(_read(store, number).named)
        if len(named) == 2:
            break
    return frozenset().union(*named)


def _numbers(store: Path) -> list[int]:
    try:
        names = [path.name for path in (store / TARGETS_DIRECTORY).iterdir()]
    except FileNotFoundError:
        return []
    return [int(found[1]) for found in map(_NAME.fullmatch, names) if found is not None]


def _read(store: Path, number: int) -> FleetTarget:
    path = _path(store, number)
    try:
        found = decode(FleetTarget, path.read_bytes())
    except PayloadError as error:
        raise bad_target(file=str(path), problem=str(error)) from None
    if found.generation != number:
        raise bad_target(file=str(path), problem=f"it says that it is number {found.generation}")
    return found


def _path(store: Path, number: int) -> Path:
    return store / TARGETS_DIRECTORY / f"{number:012}.json"
