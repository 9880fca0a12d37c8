"""The memory that a trainer's stream comes through, on the rank's side.

It is memory that a sender of this user made for this very stream, and no other, whatever a peer says: its
name begins as theirs do, its file is ours alone, and the stream's number, which we drew, stands in it. It is
seen to be whole before it is read.
"""

from __future__ import annotations

from collections.abc import Callable

from wsm.strategies.buckets._bucket_plan import (
    SEGMENT_PREFIX,
    Marks,
    segment_bytes,
    step_bytes,
    window_at,
)
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.ipc import errors as ipc_errors
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, AttachedSegment

# Bytes are given back when they make up this part of the window: more often is not worth the system calls.
_GIVEN_BACK = 8


class IncomingWindow:
    """The memory that a trainer's stream comes through, leased until :meth:`close`.

    Parameters
    ----------
    name : str
        Name of the memory.
    window_bytes : int
        Size of the window.
    end : int
        Where the stream ends.
    session : int
        The stream's number.
    referrer : str
        Who named the memory, for messages.
    directory : str
        Where it lies.

    Attributes
    ----------
    written : int
        The place in the stream up to which the trainer has written, as far as is known.

    Raises
    ------
    SharedMemoryGoneError, BadInputError, SharedMemoryBusyError, UnreadableFileError
        If the memory cannot be mapped.
    """

    def __init__(
        self,
        name: str,
        window_bytes: int,
        end: int,
        session: int,
        *,
        referrer: str,
        directory: str = MEMORY_DIRECTORY,
    ) -> None:
        self.written = 0
        self._window_bytes = window_bytes
        self._end = end
        self._taken = self._told = 0
        self._step = step_bytes(window_bytes)
        size = segment_bytes(window_bytes)
        self._segment = AttachedSegment(
            name,
            size,
            prefixes=(SEGMENT_PREFIX,),
            referrer=referrer,
            directory=directory,
            answering=True,
        )
        self._marks = Marks(self._segment, session)
        try:
            if not self._marks.offered():
                problem = f"{referrer} names it, and it was not made for this stream"
                raise ipc_errors.foreign_segment(  # noqa: TRY301 - closed below, like after any error
                    segment=self._segment.path, problem=problem, fix="look who answers there"
                )
            self._memory = self._segment.shared_memory()
        except BaseException:
            self._segment.close()
            raise

    def claim(self) -> None:
        """Let the trainer see in the memory itself which stream will read it, before it is told so.

        Only who may write there can; messages may come from any process.
        """
        self._marks.set_taken(0)

    def read(self, place: int, destination: memoryview, await_written: Callable[[int], None]) -> None:
        """Copy what lies from `place` on in the stream, and need nothing before its end any more. Blocks.

        Parameters
        ----------
        place : int
            Where in the stream; not before what was read already.
        destination : memoryview
            Flat, of as many bytes.
        await_written : callable
            ``await_written(place)`` returns once all bytes before that are written.
        """
        self.take(place)
        end = place + len(destination)
        done = 0
        while place < end:
            begin, in_a_row = window_at(place, self._window_bytes)
            length = min(end - place, in_a_row, self._step)
            if self.written < place + length:
                await_written(place + length)
            copy_bytes(self._memory[begin : begin + length], destination[done : done + length])
            place += length
            done += length
            self.take(place)

    def take(self, place: int) -> None:
        """Need nothing before `place` any more."""
        self._taken = max(self._taken, place)
        if self._taken - self._told >= self._window_bytes // _GIVEN_BACK:
            self.tell()

    def tell(self) -> None:
        """Let the trainer know what is not needed any more. Before each wait: it may wait for that."""
        if self._told < self._taken:
            self._marks.set_taken(self._taken)
            self._told = self._taken

    def look(self, *, touched: bool) -> int:
        """Return :attr:`written` after a look at the trainer's mark.

        Parameters
        ----------
        touched : bool
            Whether the target was; part of the error.

        Raises
        ------
        BadInputError
            If the memory has been cut short.
        ValueError
            If the mark is where it cannot be; says so in words.
        """
        self._segment.require_whole(touched=touched)
        written = self._marks.written()
        if written is not None and written != self.written:
            most = min(self._end, self._taken + self._window_bytes)
            if not self.written < written <= most:
                raise ValueError(f"it has written {written} bytes, after {self.written}, of {most} at most")
            self.written = written
        return self.written

    def owned(self) -> bool:
        """Whether the trainer lives: it holds a lock on the memory."""
        return self._segment.owned()

    def close(self) -> None:
        """Let the memory go, which the trainer takes for our end, and an orphan's name. Idempotent."""
        self._memory = memoryview(b"")
        self._segment.remove_orphan()
        self._segment.close()
