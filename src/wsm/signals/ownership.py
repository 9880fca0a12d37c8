"""Who may create, adopt or replace the file of a segment. One lock decides: the owner's byte.

All that changes which file the path names happens under that byte. It lies in a lock file of its own,
because a file that is itself replaced cannot hold the lock on its replacement. A participant's byte is the
proof that the participant lives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from wsm.errors import BadInputError, WsmError
from wsm.signals._memory import SharedFile, opened, publish, refusal
from wsm.signals.errors import SegmentMissingError, SegmentOwnedError
from wsm.signals.layout import HEADER_BYTES, Header, lock_path
from wsm.signals.lock_file import UNBOUNDED, LockFile, LockHold, create_lock_file, open_lock_file
from wsm.signals.presence import read_occupant

#: Bytes of the lock file: who commands, who owns, who decides in the place of a controller that is stopped,
#: and from there on the participants.
CONTROLLER_BYTE = 0
OWNER_BYTE = 1
STAND_IN_BYTE = 2
FIRST_PARTICIPANT_BYTE = 3


class Claim(NamedTuple):
    """The owner's byte of a segment that may not exist yet, held while it is made or taken over."""

    lock_file: LockFile
    hold: LockHold
    undo: contextlib.ExitStack

    def keep(self) -> tuple[LockFile, LockHold]:
        """Hand lock file and byte over to the new segment."""
        self.undo.pop_all()
        return self.lock_file, self.hold


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[Claim]:
    """Hold the owner's byte of the segment `path`; SegmentOwnedError if another holder has it.

    What was not kept is given back, and no lock file left where there is no segment.
    """
    while True:
        lock_file = create_lock_file(lock_path(path))
        hold = lock_file.try_acquire(OWNER_BYTE)
        if hold is None:
            pid = lock_file.holder(OWNER_BYTE)
            lock_file.close()
            if pid is None:
                continue  # released between the two questions
            raise SegmentOwnedError(path=str(path), pid=pid)
        if lock_file.is_current():
            break
        # The last owner removed the file between our open and our lock; no other process finds this one.
        hold.release()
        lock_file.close()
    with contextlib.ExitStack() as undo:
        undo.callback(lock_file.close)
        undo.callback(hold.release)
        undo.callback(lambda: None if os.path.lexists(path) else lock_file.remove())
        yield Claim(lock_file, hold, undo)


def publish_segment(path: Path, header: Header, content: bytes) -> SharedFile:
    """Create the file of a segment, or leave nothing behind; the caller holds the owner's byte.

    Raises RefusedError or SegmentAccessError if it cannot be made.
    """
    size = header.layout.total_bytes
    try:
        return publish(path, path.with_name(f"{path.name}.new"), size, content)
    except FileExistsError as error:  # made by a process that asks for no lock
        raise refusal(path, error) from error


def adopt_or_reclaim(path: Path, wanted: Header, claim: Claim) -> tuple[SharedFile, Header] | None:
    """Look at what a dead owner left: map it if a participant lives, else remove it and return None.

    Raises
    ------
    SegmentOwnedError
        If the recorded owner lives although its byte was free.
    BadInputError
        If a participant lives and the segment cannot be adopted by this caller.
    """
    found = _mapped_or_removed(path, claim)
    if found is not None:
        with contextlib.ExitStack() as undo:
            undo.callback(found[0].close)
            _check_adoptable(*found, wanted)
            undo.pop_all()
    return found


def remove_abandoned(path: Path) -> bool:
    """Remove the segment `path`, if its owner and all its participants are gone; return whether it is gone.

    What belongs to another user, or is in use, is left as it is. Does not block.
    """
    try:
        with claimed(path) as claim:
            found = _mapped_or_removed(path, claim)
            if found is not None:
                found[0].close()
            return found is None
    except (WsmError, OSError):  # it is used, or not ours to remove
        return False


def _mapped_or_removed(path: Path, claim: Claim) -> tuple[SharedFile, Header] | None:
    # Taking all participants' bytes at once asks whether any of them lives, and keeps all from
    # registering in a segment that is about to be removed.
    all_places = claim.lock_file.try_acquire(FIRST_PARTICIPANT_BYTE, UNBOUNDED)
    with all_places or contextlib.nullcontext():
        try:
            memory, header = map_segment(path)
        except SegmentMissingError:
            return None
        except BadInputError:
            if all_places is None:
                raise
            _remove(path)
            return None
        if all_places is None or _living(memory, (header.layout.owner, *header.layout.occupant)):
            return memory, header
        memory.close()
        _remove(path)
        return None


def map_segment(path: Path) -> tuple[SharedFile, Header]:
    """Map the file of a segment and check its header.

    Raises SegmentMissingError, SegmentAccessError, SegmentTruncatedError or BadInputError if this build can
    read none.
    """
    with opened(path) as (descriptor, size):
        header = Header.unpack(os.pread(descriptor, HEADER_BYTES, 0), path=path, file_bytes=size)
        layout = header.layout
        return SharedFile(descriptor, path, layout.total_bytes), header


def attach_consistently(path: Path) -> tuple[SharedFile, Header, LockFile]:
    """Map a segment and the lock file that belongs to it, of no other file; raises as :func:`map_segment`."""
    while True:
        memory, header = map_segment(path)
        with contextlib.ExitStack() as undo:
            undo.callback(memory.close)
            lock_file = open_lock_file(lock_path(path))
            if lock_file is None and not memory.is_replaced():
                lock_file = create_lock_file(lock_path(path))  # another process removed it by hand
            undo.pop_all()
        if lock_file is not None and not memory.is_replaced():
            return memory, header, lock_file
        # Its owner was removing or replacing both files just now.
        memory.close()
        if lock_file is not None:
            lock_file.close()


def _living(memory: SharedFile, occupants: Iterable[int]) -> list[int]:
    """Return the pids of those who live by their records; a lock file that a hand removed tells nothing."""
    with memory.cast("Q") as words:
        found = [read_occupant(words, index) for index in occupants]
    return [one.identity.pid for one in found if one and one.present and one.identity.is_known_alive]


def _check_adoptable(memory: SharedFile, header: Header, wanted: Header) -> None:
    for pid in _living(memory, [header.layout.owner]):
        if pid != os.getpid():
            raise SegmentOwnedError(path=str(memory.path), pid=pid)
    for field in ("world_size", "helpers"):
        found, expected = getattr(header, field), getattr(wanted, field)
        if found != expected:
            raise another_shape(memory.path, field.replace("_", " "), found, expected)
    if header.configuration_digest != wanted.configuration_digest:
        raise BadInputError(
            f"{memory.path} is of a live group with configuration digest "
            f"{header.configuration_digest:#018x}, not {wanted.configuration_digest:#018x}; "
            "stop that group, or start with its configuration",
            code="configuration-mismatch",
            path=str(memory.path),
            found=header.configuration_digest,
            expected=wanted.configuration_digest,
        )


def another_shape(path: Path, field: str, found: int, expected: int) -> BadInputError:
    """Return the error of a segment that is of a group of another size."""
    return BadInputError(
        f"{path} is of a group with {field} {found}, this process was configured for {expected}; "
        "use one configuration for all processes of the group, or another name",
        code="world-size-mismatch",
        path=str(path),
        found=found,
        expected=expected,
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(path, error) from error
