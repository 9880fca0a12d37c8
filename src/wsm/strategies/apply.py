"""The one place where bytes reach a model, whatever strategy brings them.

The order is what makes a failure harmless or visible: coverage, dtypes and shapes of all tensors first;
then ``taint``, from which on the weights are not whole; then each tensor is read, digested in the same pass
while it is hot in the cache, and compared. Knows no files, no states and no paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from wsm.strategies.coverage import check_coverage
from wsm.strategies.digest import running_digest, shard_digest
from wsm.strategies.errors import DigestMismatchError, LoadCancelledError, TargetContractError
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import StagedTarget, TensorSpec, WeightTarget

#: Bytes that are read and digested at a time: small enough to stay in a core's cache between the two.
CHUNK_BYTES = 1 << 20


def no_taint() -> None:
    """Stand in where nobody keeps account of touched weights."""


def no_progress(_done: int, _total: int) -> None:
    """Stand in where nobody watches."""


def never_cancelled() -> bool:
    """Stand in where nobody changes their mind."""
    return False


@dataclass(frozen=True)
class LoadObserver:
    """How a caller follows and steers a load. All calls come from the loading thread, between chunks.

    Parameters
    ----------
    taint : callable
        Called once, before the target's memory is first asked for.
    progress : callable
        ``progress(bytes applied, bytes in all)``, after at most :data:`CHUNK_BYTES` each.
    cancelled : callable
        True ends the load with :class:`LoadCancelledError` before the next chunk.
    """

    taint: Callable[[], None] = no_taint
    progress: Callable[[int, int], None] = no_progress
    cancelled: Callable[[], bool] = never_cancelled


@dataclass(frozen=True)
class Applied:
    """What was applied: bytes, tensors, how many of them had a promised digest, and the digest of all."""

    nbytes: int
    tensors: int
    verified: int
    digest: str


def apply_tensors(
    tensors: Collection[OfferedTensor],
    target: WeightTarget,
    observer: LoadObserver,
    *,
    allowed_unknown: Collection[str] = (),
) -> Applied:
    """Check everything, then copy everything into `target`. Blocks until done.

    Parameters
    ----------
    tensors : collection of OfferedTensor
        In the order in which they are to be read.
    target : WeightTarget
        Receives every tensor exactly once.
    observer : LoadObserver
        Follows the load.
    allowed_unknown : collection of str
        Offered names that are left out if the target does not have them.

    Raises
    ------
    CoverageError, DtypeMismatchError, ShapeMismatchError
        Before the target was touched.
    LoadCancelledError, DigestMismatchError, TargetContractError
        Their ``touched`` says whether it was. So does that of whatever ``read_into`` raises.
    """
    specs = target.specs()
    check_coverage(((t.spec, t.origin) for t in tensors), specs, allowed_unknown=allowed_unknown)
    chosen = [tensor for tensor in tensors if tensor.spec.name in specs]
    return _Pass(chosen, target, observer).run()


class _Pass:
    """One pass over checked tensors."""

    def __init__(self, tensors: list[OfferedTensor], target: WeightTarget, observer: LoadObserver) -> None:
        self._tensors = tensors
        self._target = target
        self._observer = observer
        self._total = sum(tensor.spec.nbytes for tensor in tensors)
        self._done = 0
        self._digests: list[tuple[TensorSpec, str]] = []

    def run(self) -> Applied:
        self._stop_if_cancelled(touched=False)
        self._observer.taint()
        for tensor in self._tensors:
            self._stop_if_cancelled(touched=True)
            digest = self._copy(tensor)
            if tensor.digest is not None and digest != tensor.digest:
                raise DigestMismatchError(
                    tensor=tensor.spec.name,
                    origin=tensor.origin,
                    expected=tensor.digest,
                    actual=digest,
                )
            if isinstance(self._target, StagedTarget):
                self._target.written(tensor.spec.name)
            self._digests.append((tensor.spec, digest))
        return Applied(
            nbytes=self._done,
            tensors=len(self._digests),
            verified=sum(tensor.digest is not None for tensor in self._tensors),
            digest=shard_digest(self._digests),
        )

    def _copy(self, tensor: OfferedTensor) -> str:
        memory = self._memory(tensor.spec)
        digest = running_digest()
        for offset in range(0, len(memory), CHUNK_BYTES):
            if offset:
                self._stop_if_cancelled(touched=True)
            chunk = memory[offset : offset + CHUNK_BYTES]
            tensor.read_into(offset, chunk)
            digest.update(chunk)
            self._done += len(chunk)
            self._observer.progress(self._done, self._total)
        return digest.hexdigest()

    def _memory(self, spec: TensorSpec) -> memoryview:
        memory = self._target.writable(spec.name)
        problem = None
        if memory.readonly:
            problem = "it is read-only"
        elif memory.format != "B" or memory.ndim != 1 or not memory.c_contiguous:
            problem = "it is not a flat view of bytes"
        elif memory.nbytes != spec.nbytes:
            problem = f"it has {memory.nbytes} bytes instead of {spec.nbytes}"
        if problem:
            raise TargetContractError(tensor=spec.name, problem=problem)
        return memory

    def _stop_if_cancelled(self, *, touched: bool) -> None:
        if self._observer.cancelled():
            raise LoadCancelledError(
                tensors_applied=len(self._digests), tensors=len(self._tensors), touched=touched
            )
