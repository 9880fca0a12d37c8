"""What runs beside the serving loop: the staging of one hot update, in a thread of its own.

:class:`StagingThread` runs one piece of work after the other, keeps what that raised, and at the end lets
memory go. :class:`Staging` is the work: all staging actions of a plan in order, none of which waits for a
peer or for the loop; the loop takes in afterwards what began and ended when. Neither touches words, journal,
machines or heartbeat, which would hide a loop that hangs.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from wsm.actions.base import Action, ActionContext
from wsm.clock import Clock
from wsm.errors import InternalError
from wsm.worker.errors import command_aborted, staging_exhausted

Work = Callable[[], object]


class StagingThread:
    """One thread for one hot update.

    It starts with the first piece of work, and ends after :meth:`retire`. One piece at a time.

    Parameters
    ----------
    rank : int
        For the thread's name.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._pieces: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._cancelled = False
        self._retired = False

    @property
    def cancelled(self) -> bool:
        """Whether the work is not wanted any more; asked by it between two chunks."""
        return self._cancelled

    def start(self, work: Work) -> None:
        """Hand a piece of work over. Does not block.

        Raises
        ------
        InternalError
            If the thread was retired.
        RuntimeError
            If the kernel grants no thread.
        """
        if self._retired:
            raise InternalError(f"the staging thread of rank {self._rank} was retired and is given work")
        self._ended.clear()
        self._hand_over(work)

    def ended(self) -> bool:
        """Whether the piece has ended."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the piece has ended; blocks up to `timeout_s` seconds. Return whether it has."""
        return self._ended.wait(timeout_s)

    def result(self) -> None:
        """Raise what the ended piece raised, with its traceback; only once, since that holds memory."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def cancel(self) -> None:
        """Say that the work is not wanted any more. Idempotent, does not block."""
        self._cancelled = True

    def retire(self, last: Work) -> None:
        """Hand over the last piece, and end the thread after it. Idempotent, does not block."""
        if self._retired:
            return
        self._retired = True
        if self._thread is None:
            last()  # nothing was begun, so there is next to nothing to let go
            return
        self._hand_over(last)
        self._pieces.put(None)

    def rest(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; blocks up to `timeout_s` seconds. Return whether it has."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _hand_over(self, work: Work) -> None:
        self._pieces.put(work)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"wsm-stager-{self._rank}", daemon=True)
            thread.start()  # the kernel may grant none: there is no thread to wait for then
            self._thread = thread

    def _run(self) -> None:
        while (work := self._pieces.get()) is not None:
            self._do(work)
            del work  # it may be all that holds gigabytes
            self._ended.set()

    def _do(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread, by result()
            self._error = error


class Moment(NamedTuple):
    """When an action began, or ended well; what an action raises ends the staging."""

    action: Action
    at_ns: int
    is_end: bool


class Staging:
    """The work that is handed to the staging thread.

    Parameters
    ----------
    actions : sequence of Action
        In order.
    context : ActionContext
        Handed to each; its ``cancelled`` ends the work between two of them.
    clock : Clock
        For the moments.
    """

    def __init__(self, actions: Sequence[Action], context: ActionContext, clock: Clock) -> None:
        self._actions = actions
        self._context = context
        self._clock = clock
        self._moments: SimpleQueue[Moment] = SimpleQueue()

    def __call__(self) -> None:
        """Run them all.

        Raises
        ------
        GroupError (``command-aborted``)
            If it is not wanted any more: what was staged is not whole.
        NoRoomError (``staging-exhausted``)
            If memory has run out.
        Exception
            Whatever else an action raises.
        """
        for action in self._actions:
            if self._context.cancelled():
                raise command_aborted(rank=self._context.rank, action=action.name)
            action.precondition(self._context)
            self._moments.put(Moment(action, self._clock.monotonic_ns(), is_end=False))
            self._run(action)
            self._moments.put(Moment(action, self._clock.monotonic_ns(), is_end=True))

    def news(self) -> list[Moment]:
        """Return the moments since the last call, in order. For another thread; does not block."""
        return [self._moments.get_nowait() for _ in range(self._moments.qsize())]

    def _run(self, action: Action) -> None:
        try:
            action.run(self._context)
            action.probe(self._context)
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            cause = str(error) or type(error).__name__
            raise staging_exhausted(rank=self._context.rank, action=action.name, cause=cause) from error
