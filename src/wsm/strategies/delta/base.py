"""What a delta is put on top of: the tensors that a target holds, or those of a whole snapshot.

A target's tensors are digested before anything else happens to them, in one pass; the pass is the proof that
they are the base, whatever was recorded of them. Knows no deltas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

from wsm.errors import InternalError, RefusedError
from wsm.strategies.applier.parallel_copy import CopyJob, copy_on_threads
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import (
    ServedTarget,
    StagedTarget,
    TensorSpec,
    WeightTarget,
    tied_names,
    transposed_names,
)

# Smaller tensors are digested by the calling thread: others would wait for the interpreter's lock.
_SHARED_BYTES = 1 << 18


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
        The target that is going to be written; only read here.
    threads : int
        How many may read it, the calling one included.

    Attributes
    ----------
    in_place : bool
        Whether what is read here is what is going to be written.
    """

    def __init__(self, target: WeightTarget, threads: int) -> None:
        self._target = target
        self._threads = threads
        self.in_place = not isinstance(target, ServedTarget)
        self._readable = target.served if isinstance(target, ServedTarget) else target.readable
        # What is written elsewhere and moved (device memory) is read as a copy: one tensor's at a time.
        self._copies = isinstance(target, StagedTarget)
        self._tied = tied_names(target)
        self._transposed = transposed_names(target)  # read as a copy too
        self._lock = threading.Lock()
        self._views: dict[str, tuple[memoryview, int]] = {}

    def digests(self, specs: Iterable[TensorSpec], observer: LoadObserver) -> Mapping[str, str] | None:
        """Return the digest of each of these tensors that the target has. Blocks, as long as a read of them.

        Returns
        -------
        mapping of str to str, or None
            By name; None if one of them holds no memory.

        Raises
        ------
        LoadCancelledError
            If the observer says so; nothing was touched.
        """
        known = self._target.specs()
        if self._tied:
            known = {**known, **{name: _named(known[own], name) for name, own in self._tied.items()}}
        wanted = [spec for spec in specs if known.get(spec.name) == spec]
        steps = _Looking(observer, tensors=len(wanted), nbytes=sum(spec.nbytes for spec in wanted))
        jobs = []
        digests: dict[str, str] = {}
        for spec in wanted:
            steps.go_on()
            try:
                view = self._view(spec)
            except RefusedError:  # released; each kind of target has an error of its own for it
                return None
            if len(view) != spec.nbytes:
                return None
            job = CopyJob(OfferedTensor(spec, "the weights that are there", _never_read), view, kept=True)
            copied = self._copies or self._tied.get(spec.name, spec.name) in self._transposed
            if copied or spec.nbytes < _SHARED_BYTES:
                job.run(steps)
                digests[spec.name] = job.digest
            else:
                jobs.append(job)
            if not copied:
                # Other threads must not ask the target, so all of its memory is known before they begin.
                self._views[spec.name] = (view, spec.nbytes)
        copy_on_threads(jobs, self._threads, steps)
        return digests | {job.tensor.spec.name: job.digest for job in jobs}

    def read(self, spec: TensorSpec, offset: int, destination: memoryview) -> None:
        """Fill `destination` from the target, unless it is the target's own memory. Blocks."""
        from wsm.strategies.delta.codec import same_memory  # noqa: PLC0415 - needs an optional package

        with self._lock:
            view, left = self._views.get(spec.name) or (self._view(spec), spec.nbytes)
            if left > len(destination):
                self._views[spec.name] = (view, left - len(destination))
            else:
                self._views.pop(spec.name, None)
        source = view[offset : offset + len(destination)]
        if not same_memory(source, destination):
            copy_bytes(source, destination)

    def let_go(self) -> None:
        """Hold on to no memory of the target any longer: it may be released now. Idempotent."""
        self._views.clear()

    def _view(self, spec: TensorSpec) -> memoryview:
        return self._readable(self._tied.get(spec.name, spec.name)) if spec.nbytes else memoryview(b"")


class _Looking:
    """A look at a target that takes long: shows that it goes on, and ends where it is no longer wanted."""

    def __init__(self, observer: LoadObserver, *, tensors: int, nbytes: int) -> None:
        self._observer = observer
        self._tensors = tensors
        self._nbytes = nbytes

    def go_on(self) -> None:
        if self._observer.cancelled():
            raise LoadCancelledError(tensors_applied=0, tensors=self._tensors, touched=False)

    def moved(self, _nbytes: int) -> None:
        self._observer.progress(0, self._nbytes)


def _named(spec: TensorSpec, name: str) -> TensorSpec:
    return TensorSpec(name, spec.dtype, spec.shape)


def _never_read(_offset: int, _destination: memoryview) -> None:
    raise InternalError("what is only looked at was read")
