"""Removes shared memory of dead trainers that no rank can find any more.

Each segment says in its first bytes which directory's metas files name it. Once its owner is dead and none of
them does, no load can come to it: not to the version before the last one, or to one that was never finished,
or to any whose directory is gone. What they still name stays, since ranks may have to copy it again. It goes
once a trainer has published through the same directory, or its metas files are gone.

Trainers look as they begin and whenever they have published, ranks behind each load and as they end. What was
made in another mount namespace is left alone: its directory cannot be seen from here.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from wsm.shared_directory import ForeignPathError, read_ours
from wsm.strategies.ipc.metas import DEVICE_SEGMENT_PREFIX, SEGMENT_PREFIX, is_metas_file
from wsm.strategies.ipc.shared_segment import HEAD_BYTES, sweep

_NAMESPACE = Path("/proc/self/ns/mnt")


def head_of(directory: Path) -> bytes:
    """Return the first bytes of a segment that metas files in `directory` are to name; empty: too long."""
    place = {"directory": os.fsdecode(directory.resolve()), "namespace": _namespace()}
    head = json.dumps(place).encode() + b"\0"
    return head if len(head) <= HEAD_BYTES else b""


def remove_abandoned(memory_directory: str | None = None) -> tuple[str, ...]:
    """Remove what this user's dead trainers left there and no metas file names; return the names.

    Never raises: what cannot be judged or removed now stays.
    """
    removed: tuple[str, ...] = ()
    for prefix in (SEGMENT_PREFIX, DEVICE_SEGMENT_PREFIX):
        with suppress(OSError, MemoryError):
            removed += sweep(prefix, memory_directory, needed=_is_needed)
    return removed


def _is_needed(name: str, head: bytes) -> bool:
    """Whether a rank may still come to a segment, or that cannot be known."""
    try:
        place = json.loads(head.partition(b"\0")[0])
        directory, namespace = Path(place["directory"]), place["namespace"]
    except (ValueError, TypeError, KeyError):
        return True  # nothing was written there yet, or by another version of wsm
    if not namespace or namespace != _namespace():
        return True
    try:
        metas = [path for path in directory.iterdir() if is_metas_file(path.name)]
        return any(name.encode() in read_ours(path) for path in metas)
    except (FileNotFoundError, NotADirectoryError):
        return directory.exists()  # a metas file that has just gone: another look will do
    except (OSError, ForeignPathError):
        return True


def _namespace() -> str:
    with suppress(OSError):
        return str(_NAMESPACE.readlink())
    return ""
