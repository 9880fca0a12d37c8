"""A request under way, for its caller: :class:`Pending`; :class:`Prepared`, where the caller decides it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import final

from wsm.clock import Clock
from wsm.ending import result_of
from wsm.errors import RefusedError, WsmError
from wsm.receipt import Outcome, Receipt
from wsm.typed import Wait, typed


class Pending:
    """A request under way. Safe for threads. In a coroutine, await it for its receipt.

    Attributes
    ----------
    request_id : str
        The request's name.
    sequence : int or None
        The number of the last command that it has written; None: none yet.
    """

    def __init__(
        self,
        request_id: str,
        ring: Callable[[], None],
        verdict: Verdict | None = None,
        given_up: threading.Event | None = None,
        *,
        here: bool = False,
    ) -> None:
        self._here = here
        self.request_id = request_id
        self.sequence: int | None = None
        self._ring = ring  # wakes the thread that drives it
        self.verdict = verdict
        self.given_up = given_up or threading.Event()
        self._future: Future[Receipt] = Future()
        self._written = threading.Event()

    @typed
    def carry_out(self, work: Callable[[], Receipt], *, here: bool = False) -> Pending:
        """Let a thread do `work`, which returns the receipt or raises; does not block.

        With `here` the calling thread does it, unless that is the main thread: a signal handler there may run
        for minutes, raise, or give a command itself, and the ranks must not wait for that. It does so, too,
        where the kernel grants no thread, and for a controller that is told what to do meanwhile.
        """
        if self._here or (here and threading.current_thread() is not threading.main_thread()):
            return self.run(work)
        with suppress(RuntimeError):
            threading.Thread(target=self.run, args=(work,), name="wsm-transaction", daemon=True).start()
            return self
        return self.run(work)

    @typed
    def run(self, work: Callable[[], Receipt]) -> Pending:
        """Do `work` in the calling thread, and take in how it ends."""
        futures = [self._future] if self.verdict is None else [self.verdict.prepared, self._future]
        try:
            receipt = work()
        except BaseException as error:  # noqa: BLE001 - the caller's thread gets it, whatever it is
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        else:
            for future in futures:
                if not future.done():
                    future.set_result(receipt)
        self._written.set()
        return self

    @typed
    def wrote(self, sequence: int) -> None:
        """Take in which command was written for it."""
        self.sequence = sequence
        self._written.set()

    @typed
    def written(self, timeout_s: Wait | None = None) -> int | None:
        """Wait until its command stands in the group's words, or it is over; return :attr:`sequence`."""
        self._written.wait(timeout_s)
        return self.sequence

    @typed
    def result(self, timeout_s: Wait | None = None) -> Receipt:
        """Wait for the receipt. Blocks; the command has a deadline of its own.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout_s` seconds; it goes on.
        WsmError
            As :meth:`wsm.Controller.clear` and :meth:`wsm.Controller.update`.
        """
        return _result(self._future, timeout_s, f"{self.request_id} is not over")

    def give_up(self) -> None:
        """Abort the command if nothing is decided yet; a decision that was made is final. Does not block."""
        self.given_up.set()
        self._ring()

    @property
    def over(self) -> bool:
        """Whether the receipt, or the error, is there."""
        return self._future.done()

    @typed
    def add_done_callback(self, callback: Callable[[Pending], object]) -> None:
        """Call `callback` with this object once the command is over, now if it is; from any thread.

        What it raises is logged by :mod:`concurrent.futures`, and goes nowhere else.
        """
        self._future.add_done_callback(lambda _future: callback(self))

    def __await__(self) -> Generator[None, None, Receipt]:
        """Wait for the receipt without blocking the event loop; raises as :meth:`result` does.

        To cancel the task that waits leaves the command as it is, under its request id; :meth:`give_up`
        aborts it.
        """
        return _awaited(self._future)


def _result(future: Future[Receipt], timeout_s: float | None, what: str) -> Receipt:
    try:
        return result_of(future, timeout_s)
    except TimeoutError:
        if future.done():  # it ended just now, or with an error that is a timeout itself
            return future.result()
        raise TimeoutError(f"{what} after {timeout_s} s; it goes on") from None


def _awaited(future: Future[Receipt]) -> Generator[None, None, Receipt]:
    import asyncio  # noqa: PLC0415 - 30 ms of every process that imports wsm, for those that use it

    waited = asyncio.wrap_future(future)
    # Nobody takes the error of a command whose waiter was cancelled: asyncio would log that as a fault.
    waited.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(waited).__await__()


class Verdict:
    """The caller's decision of its prepared command, for the thread that drives it. Safe for threads.

    `clock`: the clock of that thread, which counts the caller's lease. `prepared`: done once all are
    PREPARED; or once the command has ended before, in any way. `commits`: whether the caller wants it
    committed; None: the caller has not decided yet. `at_ns`: when the caller decided, by the clock: a
    decision made in time is in time, however late it is read.
    """

    def __init__(self, clock: Clock) -> None:
        self.prepared: Future[Receipt] = Future()
        self.commits: bool | None = None
        self.at_ns: int | None = None
        self._clock = clock
        self._lock = threading.Lock()

    def decide(self, *, commit: bool) -> bool:
        """Decide, unless that was done before; return the decision that counts."""
        with self._lock:
            if self.commits is None:
                self.at_ns = self._clock.monotonic_ns()  # first: it is read without the lock
                self.commits = commit
            return self.commits


@final
class Prepared:
    """A command that all ranks have PREPARED, or are preparing, and that its caller decides.

    As a context manager, of a coroutine, too, it is aborted if the block ends undecided. The process that
    has it holds the controller role until then: every other command gets :class:`RoleBusyError`, and if the
    process dies the group aborts the command. Once all are PREPARED the lease counts, and ends it by ABORT.
    Of an update that is not hot the old weights are gone by then: they are loaded again after every end but a
    commit, or the group is CLEARED, as its ``on_failure`` says.

    Attributes
    ----------
    request_id : str
        The request's name.
    """

    def __init__(self, pending: Pending, verdict: Verdict, ring: Callable[[], None]) -> None:
        self.request_id = pending.request_id
        self._pending = pending
        self._verdict = verdict
        self._ring = ring

    @typed
    def wait(self, timeout_s: Wait | None = None) -> Prepared:
        """Wait until all are PREPARED. Blocks; the command has a deadline of its own.

        Raises
        ------
        TimeoutError
            If they are not after `timeout_s` seconds; the command goes on.
        WsmError
            As :meth:`wsm.Controller.update`, if it ended before.
        """
        _result(self._verdict.prepared, timeout_s, f"{self.request_id} is not prepared")
        return self

    @property
    def receipt(self) -> Receipt:
        """What was prepared: version, digest, ``staged_bytes``, ``lease_s``; waits as :meth:`wait`.

        ``ALREADY_SERVED`` or ``ALREADY_HELD`` where nothing had to be prepared, and nothing is to be decided.
        """
        return self.wait()._verdict.prepared.result()

    @property
    def over(self) -> bool:
        """Whether it was decided, or ended otherwise, on every rank."""
        return self._pending.over

    def commit(self) -> Receipt:
        """Serve what was prepared, and wait for it. Blocks; a second call answers as the first.

        Raises
        ------
        RefusedError
            If it was aborted by this caller before (code ``decided-otherwise``).
        GroupError
            If its lease was over (code ``lease-over``).
        WsmError
            As :meth:`wsm.Controller.update`: a rank died, or the command ended before all were PREPARED.
        """
        return self.begin_commit().result()

    def begin_commit(self) -> Pending:
        """As :meth:`commit`, without waiting for its end."""
        return self._decided(commit=True)

    def abort(self) -> Receipt:
        """Take it back, and wait until the ranks have; blocks.

        Returns
        -------
        Receipt
            ``ABORTED``; its ``missing`` names what is gone, which of a hot update is nothing.

        Raises
        ------
        RefusedError
            If it was committed by this caller before (code ``decided-otherwise``).
        WsmError
            As :meth:`commit`.
        """
        return self.begin_abort().result()

    def begin_abort(self) -> Pending:
        """As :meth:`abort`, without waiting for its end."""
        return self._decided(commit=False)

    def give_up(self) -> None:
        """Abort it if its caller has not decided. Does not block, raises nothing."""
        self._verdict.decide(commit=False)
        self._ring()

    def _decided(self, *, commit: bool) -> Pending:
        decision, prepared = self._verdict.decide(commit=commit), self._verdict.prepared
        done = prepared.done() and prepared.exception() is None
        needs_none = done and prepared.result().outcome not in (Outcome.PREPARED, Outcome.ABORTED)
        if decision is not commit and not needs_none:
            raise decided_otherwise(self.request_id, committed=not commit)
        self._ring()
        return self._pending

    def __await__(self) -> Generator[None, None, Prepared]:
        """Wait as :meth:`wait` without blocking the event loop; to cancel it leaves the command as it is."""
        yield from _awaited(self._verdict.prepared)
        return self

    async def __aenter__(self) -> Prepared:
        """Wait until all are PREPARED; if that is cancelled, it is aborted."""
        try:
            return await self
        except BaseException:
            self.give_up()
            raise

    async def __aexit__(self, kind: object, *_: object) -> None:
        if self._verdict.commits is None:
            self.give_up()
            try:
                await self._pending
            except WsmError:
                if kind is None:
                    raise

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._verdict.commits is None:
            self.give_up()
            try:
                self._pending.result()
            except WsmError:
                if kind is None:
                    raise


def decided_otherwise(request_id: str, *, committed: bool) -> RefusedError:
    """Return the error for a decision that contradicts the one that was made before."""
    was = "committed" if committed else "aborted"
    return RefusedError(
        f"{request_id} was {was} before, and a decision is final; ask for a new update",
        code="decided-otherwise",
        request_id=request_id,
        committed=committed,
    )
