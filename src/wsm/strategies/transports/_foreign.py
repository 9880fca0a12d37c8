"""What a package that wsm does not know inside runs in, and how its tensors are taken from it.

A foreign call may block for ever, and may want an event loop that stays the same from its first call to its
last; both are kept away from the loading thread. One call at a time, so what a call returned stays as it is
until the next one begins. It takes longer to change threads than to copy a small tensor, so small ones are
taken several at a time. The package may use a tensor's memory again once its iterator is advanced, so what is
not the last of its batch is copied, unless the package promises otherwise. A batch ends with the first tensor
that is not small, and before it would keep others waiting.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from wsm.clock import Clock
from wsm.errors import BadInputError, InternalError, raise_kept
from wsm.strategies.dtype_names import PADDLE_DTYPES, paddle_name
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.observer import LoadObserver
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.strategies.trainer.tensors import is_paddle_tensor, tensor_of

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def host_nbytes(value: Any) -> int | None:
    """Return the bytes of a foreign tensor in host memory; None for any other, and for what may be none."""
    if isinstance(value, tuple):
        return value[0].nbytes if len(value) == 2 and isinstance(value[0], TensorSpec) else None
    if not is_paddle_tensor(value):
        found: Any = len(value) if isinstance(value, bytes | bytearray) else getattr(value, "nbytes", None)
        return found if isinstance(found, int) else None
    dtype = PADDLE_DTYPES.get(paddle_name(value))
    if dtype is None or not value._is_initialized() or not value.place.is_cpu_place():
        return None
    return math.prod(map(int, value.shape)) * ITEM_BYTES[dtype]


# How long a wait lasts before cancellation is looked at again.
_GLANCE_S = 0.02


class CallExpiredError(Exception):
    """A foreign call did not return in time; the thread is lost to it."""


class ForeignThread:
    """One thread for one foreign object, from its construction to its end.

    It starts with the first call and ends with :meth:`end`. It is a daemon: a call that never returns does
    not keep the process.

    Parameters
    ----------
    name : str
        For the thread's name.
    clock : Clock
        For deadlines.

    Attributes
    ----------
    lost : bool
        Whether a call has not returned in time; no further call is possible.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.lost = False
        self._name = name
        self._clock = clock
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, list[BaseException]]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: AbstractEventLoop | None = None

    def call(self, work: Callable[[], Any], *, until_ns: int, observer: LoadObserver) -> Any:
        """Run `work` in the thread and return what it returns, awaited if that is awaitable. Blocks.

        Parameters
        ----------
        work : callable
            Called in the thread.
        until_ns : int
            When to give up, on the monotonic clock.
        observer : LoadObserver
            Asked for cancellation meanwhile.

        Raises
        ------
        CallExpiredError
            If it has not returned by then.
        wsm.strategies.errors.LoadCancelledError
            If the observer says so; the thread is lost then, too.
        Exception
            Whatever `work` raises.
        """
        if self.lost:
            raise InternalError(f"the thread {self._name} is lost and is given a call")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(work)
        while True:
            left_s = (until_ns - self._clock.monotonic_ns()) / 1e9
            try:
                answer, errors = self._answers.get(timeout=max(0.0, min(left_s, _GLANCE_S)))
                break
            except Empty:
                if observer.cancelled():
                    self.lost = True
                    raise LoadCancelledError(tensors_applied=0, tensors=0) from None
                if left_s <= 0:
                    self.lost = True
                    raise CallExpiredError from None
        raise_kept(errors)
        return answer

    def end(self, last: Callable[[], Any], *, wait_s: float) -> None:
        """Run `last` in the thread, after the call that it may hang in, and end it. Idempotent.

        Blocks up to `wait_s` seconds; a lost thread is not waited for.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._calls.put(last)
        self._calls.put(None)
        if not self.lost:
            self.lost = True
            thread.join(wait_s)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            try:
                answer, errors = self._finished(work()), []
            except BaseException as error:  # noqa: BLE001 - raised again by call(), in the loading thread
                answer, errors = None, [error]
            self._answers.put((answer, errors))
            del work, answer, errors  # one of them may be all that holds a tensor
        if self._loop is not None:
            self._loop.close()

    def _finished(self, answer: Any) -> Any:
        if not inspect.isawaitable(answer):
            return answer
        if self._loop is None:
            import asyncio  # noqa: PLC0415 - only what is awaitable needs it, and every process would wait for it

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(answer))


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


#: What a stream yields after its last tensor.
END = object()
#: Bytes of a batch that may be copies.
BATCH_BYTES = 1 << 20
#: How long a batch is added to.
BATCH_S = 0.02
# From this size on copying a tensor takes longer than to change threads for it.
_SMALL_BYTES = 1 << 16
_MOST_TENSORS = 256


class Batches:
    """The items of one stream, in its order.

    Parameters
    ----------
    stream : iterator or asynchronous iterator
        Of names and tensors, or of awaitables of them.
    keep : bool
        Whether the memory of its tensors is never used again.
    """

    def __init__(self, stream: Any, *, keep: bool) -> None:
        self._asynchronous = hasattr(stream, "__anext__")
        self._stream = stream if self._asynchronous else iter(stream)
        self._keep = keep
        self._errors: list[BaseException] = []
        self._failed = False

    def first(self) -> Any:
        """Return the first item alone, or an awaitable of it; :data:`END` if there is none."""
        return anext(self._stream, END) if self._asynchronous else next(self._stream, END)

    def take(self) -> deque[Any] | Awaitable[deque[Any]]:
        """Return the next items, one at least, or an awaitable of them; the last may be :data:`END`.

        Raises
        ------
        Exception
            Whatever the stream raises, once, after the items before it were taken.
        """
        if self._failed:
            raise InternalError("a stream that has failed is asked for more")
        self._failed = bool(self._errors)
        raise_kept(self._errors)
        steps = self._steps()
        try:
            return _awaiting(steps, next(steps))
        except StopIteration as ended:  # nothing was to be awaited
            items: deque[Any] = ended.value
            return items

    def _steps(self) -> Generator[Any, Any, deque[Any]]:
        """Return the next items; yields what is to be awaited first, and is sent what that came to."""
        items, nbytes, until_s = deque[Any](), 0, time.monotonic() + BATCH_S
        try:
            while True:
                item = self.first()
                alone = inspect.isawaitable(item) and not self._asynchronous
                if inspect.isawaitable(item):
                    item = yield item
                items.append(item)
                nbytes += _small_bytes(item)
                full = nbytes > BATCH_BYTES or len(items) >= _MOST_TENSORS or time.monotonic() > until_s
                if alone or full:
                    break
                try:
                    items[-1] = item if self._keep else _copied(*item)
                except BadInputError:  # its consumer says what is wrong
                    break
                del item  # it may be all that holds a tensor
        except Exception as error:
            if not items:
                raise
            self._errors.append(error)
        return items


async def _awaiting(steps: Generator[Any, Any, deque[Any]], awaitable: Awaitable[Any]) -> deque[Any]:
    try:
        while True:
            try:
                came = await awaitable
            except Exception as error:  # noqa: BLE001, PERF203 - a foreign package may raise anything
                awaitable = steps.throw(error)
            else:
                awaitable = steps.send(came)
                del came  # it may be all that holds a tensor
    except StopIteration as ended:
        items: deque[Any] = ended.value
        return items


def _small_bytes(item: Any) -> int:
    """Return the bytes of a small tensor; more than a batch holds for any other item."""
    nbytes = host_nbytes(item[1]) if isinstance(item, tuple) and len(item) == 2 else None
    return BATCH_BYTES + 1 if nbytes is None or nbytes > _SMALL_BYTES else nbytes


def _copied(name: Any, value: Any) -> Any:
    spec, data = tensor_of(name, value)
    return name, (spec, bytes(data))
