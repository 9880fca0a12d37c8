"""What a group's owner says of the whole group, in a slot that every process reads."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from wsm.payload import PayloadError, decode, encode
from wsm.signals.layout import PayloadSlot
from wsm.signals.segment import Segment
from wsm.states.vocabulary import OnFailure

#: Under which the settings stand in their slot.
_KEY = (1, 0, 1)

#: How often settings are read while the owner writes them, and the pause in between, in seconds.
_READS, _PAUSE_S = 20, 0.001


class Awaited(NamedTuple):
    """Ranks for which all others wait between two commands, as the group's owner says.

    `where` is what they are to come to; `seen` when they were last seen at work, empty if nothing says it.
    """

    ranks: tuple[int, ...]
    where: str
    seen: str = ""


class EngineLoop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the ranks' loops look at commands of other processes than `pid`; `place`: where to."""

    polls: bool
    place: str
    pid: int


class OwnerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the owner says of the whole group.

    Parameters
    ----------
    journal_directory, logs : str or None, str
        Where the group keeps its journals, and the ranks their logs, as paths of this host.
    on_failure : OnFailure
        What becomes of a group whose update fails, where its command does not say.
    configuration : mapping
        The group's configuration as plain values, for commands that are given none; empty: it is too long, or
        JSON has no such values.
    loop : EngineLoop or None
        What the engine's loops look at; None: at the group's words.
    entry : mapping
        What FastDeploy's ranks tell each other through rank 0 (:mod:`wsm.fastdeploy`).
    """

    journal_directory: str | None = None
    on_failure: OnFailure = OnFailure.RESTORE
    awaited: Awaited | None = None
    loop: EngineLoop | None = None
    logs: str = ""
    configuration: Mapping[str, Any] = {}
    entry: Mapping[str, Any] = {}

    @property
    def journals(self) -> Path | None:
        """Where the group keeps its journals; None if it keeps none."""
        return None if self.journal_directory is None else Path(self.journal_directory)


def settings_in(slot: PayloadSlot) -> OwnerSettings:
    """Return what stands in the slot; the defaults where that is nothing, or of another build of wsm."""
    for _ in range(0 if slot.is_empty else _READS):
        data = slot.read(*_KEY)
        if data is not None:
            return _read(data)
        time.sleep(_PAUSE_S)  # the owner is writing it, or was torn from it by its death
    return OwnerSettings()


@functools.lru_cache(maxsize=8)
def _read(data: bytes) -> OwnerSettings:
    """Read what an owner says; the same bytes are read with each command."""
    try:
        return decode(OwnerSettings, data)
    except PayloadError:
        return OwnerSettings()


def owner_says(segment: Segment, settings: OwnerSettings) -> None:
    """Say all of it anew, of which nothing stays that another owner has said. For the owner alone."""
    segment.settings.write_over(*_KEY, encode(settings))


def owner_adds(segment: Segment, **said: Any) -> None:
    """Say something of the whole group, beside what was said under other names. For the owner alone."""
    owner_says(segment, msgspec.structs.replace(settings_in(segment.settings), **said))


def owner_awaits(segment: Segment, ranks: Sequence[int], *, where: str, seen: str = "") -> None:
    """Say for which ranks all others wait, and where; none: for none any more."""
    owner_adds(segment, awaited=Awaited(tuple(ranks), where, seen) if ranks else None)


def declare_loop(segment: Segment, *, polls: bool, place: str) -> None:
    """Say whether the ranks' loops look at commands of other processes than this one; `place`: where to."""
    owner_adds(segment, loop=EngineLoop(polls, place, os.getpid()))


def loop_without_poll(segment: Segment) -> str | None:
    """Return where the ranks' loops would have to look at a command of this process; None: they do."""
    loop = settings_in(segment.settings).loop
    return None if loop is None or loop.polls or loop.pid == os.getpid() else loop.place
