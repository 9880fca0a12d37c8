"""Taking small tensors from a foreign iterator several at a time, as it takes longer to change threads.

The iterator may use a tensor's memory again once it is advanced, so what is not the last of its batch is
copied, unless the package promises otherwise. A batch ends with the first tensor that is not small, and
before it would keep others waiting. Runs where the package runs; knows no package and no waits. How
much memory a package takes beside the model meanwhile is arithmetic.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from wsm.errors import InternalError
from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.trainer.tensors import tensor_of
from wsm.strategies.transports._foreign import host_nbytes
from wsm.strategies.transports.stream_manifest import StreamManifest

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
        self._error: Exception | None = None
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
        error, self._error = self._error, None
        if error is not None:
            self._failed = True
            try:
                raise error
            finally:
                del error  # its traceback leads here: a cycle would keep what the callers hold
        batch = _Batch(keep=self._keep)
        return self._take_awaiting(batch) if self._asynchronous else self._take(batch)

    def _take(self, batch: _Batch) -> deque[Any] | Awaitable[deque[Any]]:
        more = True
        while more:
            try:
                item = next(self._stream, END)
            except Exception as error:  # noqa: BLE001 - a foreign package may raise anything
                return self._ended(batch, error)
            if inspect.isawaitable(item):
                return self._with_awaited(batch, item)
            more = batch.add(item)
            del item  # it may be all that holds a tensor
        return batch.items

    async def _take_awaiting(self, batch: _Batch) -> deque[Any]:
        more = True
        while more:
            try:
                item = await anext(self._stream, END)
            except Exception as error:  # noqa: BLE001 - a foreign package may raise anything
                return self._ended(batch, error)
            more = batch.add(item)
            del item  # it may be all that holds a tensor
        return batch.items

    async def _with_awaited(self, batch: _Batch, item: Awaitable[Any]) -> deque[Any]:
        try:
            batch.items.append(await item)
        except Exception as error:  # noqa: BLE001 - a foreign package may raise anything
            return self._ended(batch, error)
        return batch.items

    def _ended(self, batch: _Batch, error: Exception) -> deque[Any]:
        if not batch.items:
            raise error
        self._error = error
        return batch.items


class _Batch:
    """Items on their way to another thread."""

    def __init__(self, *, keep: bool) -> None:
        self.items: deque[Any] = deque()
        self._keep = keep
        self._nbytes = 0
        self._until_s = time.monotonic() + BATCH_S

    def add(self, item: Any) -> bool:
        """Take an item in; return whether the stream may be advanced before it was used."""
        self.items.append(item)
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        name, value = item
        nbytes = host_nbytes(value)
        if nbytes is None or nbytes > _SMALL_BYTES:
            return False
        self._nbytes += nbytes
        if self._nbytes > BATCH_BYTES or len(self.items) >= _MOST_TENSORS or time.monotonic() > self._until_s:
            return False
        if not self._keep:
            try:
                spec, data = tensor_of(name, value)
            except TrainerTensorError:  # its consumer says what is wrong
                return False
            self.items[-1] = (name, (spec, bytes(data)))
        return True


@dataclass(frozen=True)
class PackageBuffers:
    """What a package holds of a stream: so many buffers of a size, as its settings say."""

    count: int
    nbytes: int

    def peak_extra_bytes(self, manifest: StreamManifest | None, *, keep: bool) -> int:
        """Return what is held beside the target at most: in these buffers, and in batches of ours.

        A tensor that is larger than a buffer has to lie somewhere, too; and buffers hold no more than the
        stream brings. What a package takes when it connects is gone by then, so it is not counted twice.

        Parameters
        ----------
        manifest : StreamManifest or None
            What the stream brings, where that is known.
        keep : bool
            Whether nothing is copied, because the package never uses its memory again.
        """
        sizes = [] if manifest is None else [tensor.spec.nbytes for tensor in manifest.tensors]
        held = self.count * max([self.nbytes, *sizes])
        if manifest is not None:
            held = min(held, sum(sizes))
        return held + (0 if keep else BATCH_BYTES)
