"""Shared memory and files change under a command that is under way: a rank stands at some line meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from campaign.deaths_midway import Havoc, any_line, later, let_go
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.segment_damage import PLACES, flip
from wsm.signals.layout import segment_path


def _standing(damage: Callable[[GroupUnderFault, random.Random], object]) -> Havoc:
    """Do the damage while a rank stands at a line; if it never comes there, after the command."""

    def begin(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
        fault = Fault(chance.choice(group.victims), "line", Act.STOP, any_line(chance))
        group.arm(fault)

        def strike() -> None:
            group.await_fired(fault, 2.0)
            damage(group, chance)
            let_go(group, fault)

        return later(chance, strike)

    return begin


def _flip(group: GroupUnderFault, chance: random.Random) -> None:
    flip(group, chance.choice(PLACES).format(rank=chance.randrange(group.ranks)), chance)


def _unlink_segment(group: GroupUnderFault, _chance: random.Random) -> None:
    group.damaged = True
    segment_path(group.config.group.name).unlink()


def _version_file(change: Callable[[Path], object]) -> Callable[[GroupUnderFault, random.Random], None]:
    def damage(group: GroupUnderFault, _chance: random.Random) -> None:
        path = group.snapshots / "version.yaml"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        change(path)

    return damage


def _newest(group: GroupUnderFault) -> Path:
    return group.snapshots / "versions" / str(group.published)


def _remove_version(group: GroupUnderFault, _chance: random.Random) -> None:
    shutil.rmtree(_newest(group), ignore_errors=True)


def _cut_parts(group: GroupUnderFault, chance: random.Random) -> None:
    for path in _newest(group).glob("*.pdparams"):
        os.truncate(path, chance.choice((0, path.stat().st_size // 2)))


KINDS: dict[str, Havoc] = {
    "flip-midway": _standing(_flip),
    "segment-gone": _standing(_unlink_segment),
    "yaml-gone": _standing(_version_file(lambda _path: None)),
    "yaml-torn": _standing(_version_file(lambda path: path.write_bytes(b"version: {\x00"))),
    "yaml-pipe": _standing(_version_file(os.mkfifo)),
    "version-gone": _standing(_remove_version),
    "parts-cut": _standing(_cut_parts),
}
