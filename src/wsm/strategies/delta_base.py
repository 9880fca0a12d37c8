"""What a delta is put on top of: the tensors that a target holds, or those of a whole snapshot.

A target's tensors are digested before anything else happens to them, in one pass; the pass is the proof that
they are the base, whatever anybody remembers of them. Knows no deltas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

from wsm.errors import RefusedError
from wsm.strategies.copying import CHUNK_BYTES
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ServedTarget, TensorSpec, WeightTarget


class BaseTensors(Protocol):
    """Tensors that a delta is put on top of."""

    def read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
        """Fill `destination` with the base's bytes from `offset` on. Blocks; several threads may call it."""
        ...


class SnapshotBase:
    """The tensors of a whole snapshot.

    Parameters
    ----------
    tensors : iterable of OfferedTensor
        As a strategy offers them.
    """

    def __init__(self, tensors: Iterable[OfferedTensor]) -> None:
        self._tensors = {tensor.spec.name: tensor for tensor in tensors}

    def read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
        """Fill `destination` from the snapshot's file. Blocks."""
        self._tensors[spec.name].read_into(offset, destination)


class TargetBase:
    """The tensors that a target holds; for one that is staged, those that serve beside it.

    Where the target is written in place the base's bytes are there already, and are left alone.

    Parameters
    ----------
    target : WeightTarget
        The target that is going to be written.
    """

    def __init__(self, target: WeightTarget) -> None:
        self._readable = target.served if isinstance(target, ServedTarget) else target.readable
        self._lock = threading.Lock()
        # A target in device memory answers with a copy, so each view is kept until its tensor is done.
        self._views: dict[str, tuple[memoryview, int]] = {}

    def digests(self, specs: Iterable[TensorSpec], observer: LoadObserver) -> Mapping[str, str] | None:
        """Return the digest of each tensor; None if one of them holds no memory. Blocks, one read of all.

        Raises
        ------
        LoadCancelledError
            If the observer says so; nothing was touched.
        """
        wanted = list(specs)
        total = sum(spec.nbytes for spec in wanted)
        found = {}
        for spec in wanted:
            try:
                view = self._view(spec)
            except RefusedError:  # released; each kind of target has an error of its own for it
                return None
            if len(view) != spec.nbytes:
                return None
            digest = running_digest()
            for begin in range(0, len(view), CHUNK_BYTES):
                if observer.cancelled():
                    raise LoadCancelledError(tensors_applied=0, tensors=len(wanted), touched=False)
                digest.update(view[begin : begin + CHUNK_BYTES])
                observer.progress(0, total)
            found[spec.name] = digest.hexdigest()
        return found

    def read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
        """Fill `destination` from the target, unless it is the target's own memory. Blocks."""
        from wsm.strategies.delta_codec import same_memory  # noqa: PLC0415 - needs an optional package

        with self._lock:
            view, left = self._views.get(spec.name) or (self._view(spec), spec.nbytes)
            if left > len(destination):
                self._views[spec.name] = (view, left - len(destination))
            else:
                self._views.pop(spec.name, None)
        source = view[offset : offset + len(destination)]
        if not same_memory(source, destination):
            destination[:] = source

    def _view(self, spec: TensorSpec) -> memoryview:
        return self._readable(spec.name) if spec.nbytes else memoryview(b"")
