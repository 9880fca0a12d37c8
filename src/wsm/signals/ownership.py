"""Who may create, adopt or replace the file of a segment. One lock decides: the owner's byte.

All that changes which file the path names happens under that byte: creating, removing, replacing. It
lies in a lock file of its own, because a file that is itself replaced cannot hold the lock on its
replacement. A participant's byte is the proof that the participant lives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from wsm.errors import BadInputError, WsmError
from wsm.shared_directory import ForeignPathError, is_ours, remove_ours
from wsm.signals import errors
from wsm.signals._memory import SharedFile, opened, publish, refusal
from wsm.signals.errors import SegmentMissingError, SegmentOwnedError
from wsm.signals.layout import HEADER_BYTES, Header, layout_of
from wsm.signals.lock_file import UNBOUNDED, LockFile, LockHold, create_lock_file, open_lock_file
from wsm.signals.names import lock_path, unfinished_path
from wsm.signals.presence import read_occupant

#: Bytes of the lock file: who commands, who owns, who decides in the place of a controller that is stopped,
#: and from there on the participants.
CONTROLLER_BYTE = 0
OWNER_BYTE = 1
STAND_IN_BYTE = 2
FIRST_PARTICIPANT_BYTE = 3


class Claim:
    """The owner's byte, held while a segment is made or taken over.

    Parameters
    ----------
    path : Path
        The segment, which may not exist yet.
    lock_file : LockFile
        Its lock file; the claim gives it back unless it is kept.
    hold : LockHold
        The owner's byte in it.
    """

    def __init__(self, path: Path, lock_file: LockFile, hold: LockHold) -> None:
        self.path = path
        self.lock_file = lock_file
        self.hold = hold
        self._is_kept = False

    def keep(self) -> tuple[LockFile, LockHold]:
        """Hand lock file and byte over to the new segment."""
        self._is_kept = True
        return self.lock_file, self.hold

    def give_back(self) -> None:
        """Release what was not kept, and leave no lock file where there is no segment."""
        if not self._is_kept:
            if not is_ours(self.path):
                self.lock_file.remove()
            self.hold.release()
            self.lock_file.close()


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[Claim]:
    """Hold the owner's byte of the segment `path`.

    Raises
    ------
    SegmentOwnedError
        If another process, or another part of this one, holds it.
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
    claim = Claim(path, lock_file, hold)
    try:
        yield claim
    finally:
        claim.give_back()


def publish_segment(path: Path, header: Header, content: bytes) -> SharedFile:
    """Create the file of a segment; the caller holds the owner's byte.

    Raises
    ------
    SegmentExistsError, RefusedError, SegmentAccessError
        If it cannot be made; nothing is left behind.
    """
    return publish(
        path, unfinished_path(path), layout_of(header.world_size, header.helpers).total_bytes, content
    )


def adopt_or_reclaim(path: Path, wanted: Header, claim: Claim) -> tuple[SharedFile, Header] | None:
    """Look at what a dead owner left: map it if a participant lives, else remove it.

    Returns
    -------
    tuple or None
        The mapped segment and its header; None if there is nothing (any more) at `path`.

    Raises
    ------
    SegmentOwnedError
        If the recorded owner lives although its byte was free.
    BadInputError
        If a participant lives and the segment cannot be adopted by this caller.
    """
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
        with contextlib.ExitStack() as undo:
            undo.callback(memory.close)
            if all_places is not None and not _any_process_on_record(memory, header):
                _remove(path)
                return None
            _check_adoptable(memory, header, wanted)
            undo.pop_all()
        return memory, header


def remove_abandoned(path: Path) -> bool:
    """Remove the segment `path`, if its owner and all its participants are gone; return whether it is gone.

    What belongs to another user, or is in use, is left as it is. Does not block.
    """
    if path.exists() and not is_ours(path):
        return False
    try:
        with claimed(path) as claim:
            all_places = claim.lock_file.try_acquire(FIRST_PARTICIPANT_BYTE, UNBOUNDED)
            if all_places is None:
                return False
            with all_places:
                try:
                    memory, header = map_segment(path)
                except SegmentMissingError:
                    return True
                with contextlib.closing(memory):
                    if _any_process_on_record(memory, header):
                        return False
                _remove(path)
                return True
    except (WsmError, OSError):  # it is used, it is no segment, or it is not ours to remove
        return False


def map_segment(path: Path) -> tuple[SharedFile, Header]:
    """Map the file of a segment and check its header.

    Raises
    ------
    SegmentMissingError, SegmentAccessError, SegmentTruncatedError, BadInputError
        If there is none that this build can read.
    """
    with opened(path) as (descriptor, size):
        header = Header.unpack(os.pread(descriptor, HEADER_BYTES, 0), path=path, file_bytes=size)
        layout = layout_of(header.world_size, header.helpers)
        return SharedFile(descriptor, path, layout.total_bytes), header


def attach_consistently(path: Path) -> tuple[SharedFile, Header, LockFile]:
    """Map a segment and open the lock file that belongs to it, not that of its predecessor or successor.

    Raises
    ------
    SegmentMissingError and those of :func:`map_segment`
        If there is none to attach to.
    """
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


def _any_process_on_record(memory: SharedFile, header: Header) -> bool:
    """Whether owner or participants live by their records.

    They do without their locks being found if another process removed the lock file by hand.
    """
    layout = layout_of(header.world_size, header.helpers)
    with memory.cast("Q") as words:
        occupants = [read_occupant(words, index) for index in (layout.owner, *layout.occupant)]
    return any(
        occupant is not None and occupant.present and occupant.identity.is_known_alive
        for occupant in occupants
    )


def _check_adoptable(memory: SharedFile, header: Header, wanted: Header) -> None:
    with memory.cast("Q") as words:
        owner = read_occupant(words, layout_of(header.world_size, header.helpers).owner)
    if (
        owner is not None
        and owner.present
        and owner.identity.is_known_alive
        and owner.identity.pid != os.getpid()
    ):
        raise SegmentOwnedError(path=str(memory.path), pid=owner.identity.pid)
    for field in ("world_size", "helpers"):
        found, expected = getattr(header, field), getattr(wanted, field)
        if found != expected:
            raise errors.world_size_mismatch(
                path=str(memory.path), field=field.replace("_", " "), found=found, expected=expected
            )
    if header.configuration_digest != wanted.configuration_digest:
        raise errors.configuration_mismatch(
            path=str(memory.path), found=header.configuration_digest, expected=wanted.configuration_digest
        )


def _remove(path: Path) -> None:
    try:
        remove_ours(path)
    except (OSError, ForeignPathError) as error:
        raise refusal(path, error) from error
