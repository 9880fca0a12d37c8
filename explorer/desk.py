"""The controller's side of an explored group: its words, its process, what the group's owner remembers."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from explorer.participant import Seen


class Desk(NamedTuple):
    """The controller.

    Attributes
    ----------
    command, committed : int
        Packed words in shared memory.
    version : int
        What the command's arguments name; stored before the word.
    alive : bool
        Whether a process holds, or could take, the controller role.
    driving : bool
        Whether it drives a command that is not over.
    gives_up : bool
        Whether it aborts what is not decided: it took over from one that died.
    pending : int
        The command word that it has made up its mind to write (fine exploration only); 0: none.
    pending_version : int
        What goes with it.
    spoiled : bool
        Whether a controller died after it had stored the next command's arguments, so that the next command
        skips a sequence.
    recovering : bool
        Whether it has raised the epoch and keeps the role until the group is restored.
    before : bool
        What the command's arguments say: whether the group served when it was admitted.
    pending_before : bool
        As `before`, of the word that is not written yet.
    tags : int
        What the command's arguments say it is about, as in :mod:`explorer.work`.
    pending_tags : int
        As `tags`, of the word that is not written yet.
    clears_half : bool
        What the command's arguments say besides: whether it is a clear, of one half.
    restores, pending_restores : bool
        What the arguments say besides: whether the command restores what the group served before it lost a
        rank; and of the word that is not written yet.
    failed : int
        What the group's owner remembers: how many attempts to restore it have failed in this epoch.
    gave_up : bool
        Whether the owner recovers the group no more: whoever is gone stays away.
    owed : int
        What no process knows, and a rule asks for: the version that the group must serve if an epoch ends
        now; 0: none.
    stopped : int
        Only where a seeded fault lets somebody write beside one that lives: the command word that is still
        meant to be written.
    left : bool
        Whether its process died, and no other controller follows: the group ends what is open by itself.
    ending : bool
        Whether a process of the group has the role, to do so.
    frozen : bool
        Whether its process is stopped, with the role, and may go on at any time or never.
    seen : Seen
        A status word that it goes on seeing as it was.
    """

    command: int
    committed: int
    version: int
    alive: bool = True
    driving: bool = False
    gives_up: bool = False
    pending: int = 0
    pending_version: int = 0
    spoiled: bool = False
    recovering: bool = False
    before: bool = False
    pending_before: bool = False
    tags: int = 3
    pending_tags: int = 3
    clears_half: bool = False
    restores: bool = False
    pending_restores: bool = False
    failed: int = 0
    gave_up: bool = False
    owed: int = 0
    stopped: int = 0
    left: bool = False
    ending: bool = False
    frozen: bool = False
    seen: Seen = Seen()


_DESK = struct.Struct("<QQBIQBBBQBQ")

#: Where a packed desk says which word is hidden from the controller.
SEEN_BYTE = struct.calcsize("<QQBIQBBBQ")


@lru_cache(maxsize=1 << 17)
def pack(desk: Desk) -> bytes:
    """Return a desk as bytes."""
    flags = (
        desk.alive
        | desk.driving << 1
        | desk.gives_up << 2
        | desk.spoiled << 3
        | desk.recovering << 4
        | desk.before << 5
        | desk.pending_before << 6
        | desk.clears_half << 7
        | desk.restores << 8
        | desk.pending_restores << 9
        | desk.gave_up << 10
        | desk.left << 11
        | desk.ending << 12
        | desk.frozen << 13
        | desk.failed << 14
    )
    return _DESK.pack(
        desk.command,
        desk.committed,
        desk.version,
        flags,
        desk.pending,
        desk.pending_version,
        desk.owed,
        desk.tags | desk.pending_tags << 2,
        desk.stopped,
        *desk.seen,
    )


@lru_cache(maxsize=1 << 17)
def unpack(data: bytes) -> Desk:
    """Return the desk of what :func:`pack` returned."""
    command, committed, version, flags, pending, pending_version, owed, *rest = _DESK.unpack(data)
    tags, stopped, word, value = rest
    return Desk(
        command,
        committed,
        version,
        alive=bool(flags & 1),
        driving=bool(flags & 2),
        gives_up=bool(flags & 4),
        pending=pending,
        pending_version=pending_version,
        spoiled=bool(flags & 8),
        recovering=bool(flags & 16),
        before=bool(flags & 32),
        pending_before=bool(flags & 64),
        clears_half=bool(flags & 128),
        restores=bool(flags & 256),
        pending_restores=bool(flags & 512),
        gave_up=bool(flags & 1024),
        left=bool(flags & 2048),
        ending=bool(flags & 4096),
        frozen=bool(flags & 8192),
        failed=flags >> 14,
        tags=tags & 3,
        pending_tags=tags >> 2,
        owed=owed,
        stopped=stopped,
        seen=Seen(word, value),
    )
