"""A command under way, in the hands of its caller. Knows nothing of how it is driven."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from wsm.receipt import Receipt


class Pending:
    """A command under way, for the caller. Safe for threads. In a coroutine, await it for its receipt.

    Attributes
    ----------
    request_id : str
        The request's name.
    """

    def __init__(self, request_id: str, future: Future[Receipt], give_up: Callable[[], None]) -> None:
        self.request_id = request_id
        self._future = future
        self._give_up = give_up

    @classmethod
    def ended(cls, receipt: Receipt) -> Pending:
        """Return a command that needed no work."""
        future: Future[Receipt] = Future()
        future.set_result(receipt)
        return cls(receipt.request_id, future, lambda: None)

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt. Blocks; the command has a deadline of its own.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout_s` seconds; it goes on.
        WsmError
            As :meth:`wsm.Controller.clear` and :meth:`wsm.Controller.update`.
        """
        try:
            return self._future.result(timeout_s)
        except FutureTimeoutError:
            if self._future.done():  # it ended just now, or with an error that is a timeout itself
                return self._future.result()
            raise TimeoutError(f"{self.request_id} is not over after {timeout_s} s; it goes on") from None

    def give_up(self) -> None:
        """Abort the command if nothing is decided yet; a decision that was made is final. Does not block."""
        self._give_up()

    @property
    def over(self) -> bool:
        """Whether the receipt, or the error, is there."""
        return self._future.done()

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
        import asyncio  # noqa: PLC0415 - 30 ms of every process that imports wsm, for those that use it

        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()
