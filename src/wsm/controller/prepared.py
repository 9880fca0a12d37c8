"""A command whose decision its caller makes: what was prepared, and the two words that end it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import final

from wsm.controller import errors
from wsm.controller._command_request import HeldDecision
from wsm.controller._transaction import Pending
from wsm.ending import result_of
from wsm.errors import WsmError
from wsm.receipt import Outcome, Receipt


@final
class Prepared:
    """A command that all ranks have PREPARED, or are preparing, and that its caller decides.

    As a context manager, of a coroutine, too, it is aborted if the block ends undecided. The process that
    has it holds the controller role until then: every other command gets :class:`RoleBusyError`, and if the
    process dies the group aborts the command. Once all are PREPARED the lease counts, and ends it by ABORT.
    Of an update that is not hot the old weights are gone by then: every end but a commit leaves the group
    CLEARED.

    Attributes
    ----------
    request_id : str
        The request's name.
    """

    def __init__(self, pending: Pending, held: HeldDecision, ring: Callable[[], None]) -> None:
        self.request_id = pending.request_id
        self._pending = pending
        self._held = held
        self._ring = ring

    def wait(self, timeout_s: float | None = None) -> Prepared:
        """Wait until all are PREPARED. Blocks; the command has a deadline of its own.

        Raises
        ------
        TimeoutError
            If they are not after `timeout_s` seconds; the command goes on.
        WsmError
            As :meth:`wsm.Controller.update`, if it ended before.
        """
        try:
            result_of(self._held.prepared, timeout_s)
        except TimeoutError:
            if not self._held.prepared.done():
                raise TimeoutError(
                    f"{self.request_id} is not prepared after {timeout_s} s; it goes on"
                ) from None
            self._held.prepared.result()
        return self

    @property
    def receipt(self) -> Receipt:
        """What was prepared: version, digest, ``staged_bytes``, ``lease_s``; waits as :meth:`wait`.

        ``ALREADY_SERVED`` or ``ALREADY_HELD`` where nothing had to be prepared, and nothing is to be decided.
        """
        return self.wait()._held.prepared.result()

    @property
    def over(self) -> bool:
        """Whether it was decided, or ended otherwise, on every rank."""
        return self._pending.over

    def commit(self) -> Receipt:
        """Serve what was prepared, and wait for it. Blocks; to say it twice is to say it once.

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
        self._say(commit=True)
        return self._pending

    async def commit_async(self) -> Receipt:
        """As :meth:`commit`, for a coroutine."""
        return await self.begin_commit()

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
        self._say(commit=False)
        return self._pending

    async def abort_async(self) -> Receipt:
        """As :meth:`abort`, for a coroutine."""
        return await self.begin_abort()

    def give_up(self) -> None:
        """Abort it if nothing was said yet. Does not block, raises nothing."""
        self._held.say(commit=False)
        self._ring()

    def _say(self, *, commit: bool) -> None:
        if self._held.say(commit=commit) is not commit and not self._ended_without_work():
            raise errors.decided_otherwise(request_id=self.request_id, committed=not commit)
        self._ring()

    def _ended_without_work(self) -> bool:
        prepared = self._held.prepared
        done = prepared.done() and prepared.exception() is None
        return done and prepared.result().outcome not in (Outcome.PREPARED, Outcome.ABORTED)

    def __await__(self) -> Generator[None, None, Prepared]:
        """Wait as :meth:`wait` without blocking the event loop; to cancel it leaves the command as it is."""
        import asyncio  # noqa: PLC0415 - 30 ms of every process that imports wsm, for those that use it

        yield from asyncio.shield(asyncio.wrap_future(self._held.prepared)).__await__()
        return self

    async def __aenter__(self) -> Prepared:
        """Wait until all are PREPARED; if that is cancelled, it is aborted."""
        try:
            return await self
        except BaseException:
            self.give_up()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held.said is None:
            self.give_up()
            try:
                await self._pending
            except WsmError:
                if kind is None:
                    raise

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held.said is None:
            self.give_up()
            try:
                self._pending.result()
            except WsmError:
                if kind is None:
                    raise
