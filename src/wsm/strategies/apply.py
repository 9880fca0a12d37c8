"""The one place where bytes reach a model, whatever strategy brings them.

The order is what makes a failure harmless or visible: coverage, dtypes and shapes of all tensors first (of
the first one, where they are known only as they come); then ``taint``, from which on the weights are not
whole; then each tensor is read, digested in the same pass while it is hot in the cache, and compared.
Memory that its owner lets us keep is digested where it lies and kept, if the target holds nothing for that
tensor; all else is copied. Knows no files, no states, no paddle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from wsm.strategies.copying import CHUNK_BYTES
from wsm.strategies.coverage import RunningCoverage, check_coverage
from wsm.strategies.digest import RunningDigest, running_digest, shard_digest
from wsm.strategies.errors import DigestMismatchError, LoadCancelledError, TargetContractError
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import AdoptingTarget, StagedTarget, TensorSpec, WeightTarget


@dataclass(frozen=True)
class Applied:
    """What was applied: bytes, tensors, how many of them had a promised digest, and the digest of all.

    `adopted` counts the bytes that were not copied: the target keeps the memory that they came in.
    """

    nbytes: int
    tensors: int
    verified: int
    digest: str
    adopted: int = 0


def apply_tensors(
    tensors: Iterable[OfferedTensor],
    target: WeightTarget,
    observer: LoadObserver,
    *,
    declared: bool = True,
    allowed_unknown: Collection[str] = (),
) -> Applied:
    """Check everything, then copy everything into `target`. Blocks until done.

    Parameters
    ----------
    tensors : iterable of OfferedTensor
        In the order in which they are to be read.
    target : WeightTarget
        Receives every tensor exactly once.
    observer : LoadObserver
        Follows the load.
    declared : bool
        Whether all tensors are known now. If not, each one is checked when it comes, before it is written.
    allowed_unknown : collection of str
        Offered names that are left out if the target does not have them.

    Raises
    ------
    CoverageError, DtypeMismatchError, ShapeMismatchError
        Before the target was touched, if `declared`; else their ``touched`` says whether it was.
    LoadCancelledError, DigestMismatchError, TargetContractError
        Their ``touched`` says whether it was. So does that of whatever ``read_into`` raises.
    """
    specs = target.specs()
    if not declared:
        coming = _as_they_come(tensors, RunningCoverage(specs, allowed_unknown=allowed_unknown))
        total = sum(spec.nbytes for spec in specs.values())
        return _Pass(target, observer, tensors=len(specs), nbytes=total).run(coming)
    tensors = tuple(tensors)
    check_coverage(((t.spec, t.origin) for t in tensors), specs, allowed_unknown=allowed_unknown)
    chosen = [tensor for tensor in tensors if tensor.spec.name in specs]
    total = sum(tensor.spec.nbytes for tensor in chosen)
    return _Pass(target, observer, tensors=len(chosen), nbytes=total).run(iter(chosen))


def _as_they_come(tensors: Iterable[OfferedTensor], coverage: RunningCoverage) -> Iterator[OfferedTensor]:
    for tensor in tensors:
        if coverage.admits(tensor.spec, tensor.origin):
            yield tensor
    coverage.finish()


class _Pass:
    """One pass over tensors that were checked before they are yielded."""

    def __init__(self, target: WeightTarget, observer: LoadObserver, *, tensors: int, nbytes: int) -> None:
        self._target = target
        # Asked once: what a target can do takes longer to find out than to copy a small tensor.
        self._adopting = target if isinstance(target, AdoptingTarget) else None
        self._staged = target if isinstance(target, StagedTarget) else None
        self._observer = observer
        self._tensors = tensors
        self._total = nbytes
        self._done = 0
        self._adopted = 0
        self._verified = 0
        self._digests: list[tuple[TensorSpec, str]] = []

    def run(self, tensors: Iterator[OfferedTensor]) -> Applied:
        self._stop_if_cancelled(touched=False)
        tensor = next(tensors, None)
        if tensor is not None:
            self._observer.taint()
        while tensor is not None:
            self._stop_if_cancelled(touched=True)
            self._apply(tensor)
            tensor = next(tensors, None)
        return Applied(
            nbytes=self._done,
            tensors=len(self._digests),
            verified=self._verified,
            digest=shard_digest(self._digests),
            adopted=self._adopted,
        )

    def _apply(self, tensor: OfferedTensor) -> None:
        kept = self._kept(tensor)
        digest = self._copy(tensor) if kept is None else self._digest_in_place(tensor, kept)
        if tensor.digest is not None and digest != tensor.digest:
            raise DigestMismatchError(
                tensor=tensor.spec.name,
                origin=tensor.origin,
                expected=tensor.digest,
                actual=digest,
            )
        if kept is not None and self._adopting is not None:
            self._adopting.adopt(tensor.spec.name, kept)
            self._adopted += len(kept)
        elif self._staged is not None:
            self._staged.written(tensor.spec.name)
        self._verified += tensor.digest is not None or tensor.witness is not None
        self._digests.append((tensor.spec, digest))

    def _kept(self, tensor: OfferedTensor) -> memoryview | None:
        """Return the source's own memory if the target will keep it instead of a copy."""
        if tensor.memory is None or self._adopting is None or not tensor.spec.nbytes:
            return None
        return tensor.memory() if self._adopting.adopts(tensor.spec.name) else None

    def _copy(self, tensor: OfferedTensor) -> str:
        memory = self._memory(tensor.spec)
        digest = running_digest()
        for begin, end in self._chunks(len(memory), tensor.piece_bytes):
            chunk = memory[begin:end]
            tensor.read_into(begin, chunk)
            self._account(tensor, digest, chunk, end)
        return digest.hexdigest()

    def _digest_in_place(self, tensor: OfferedTensor, kept: memoryview) -> str:
        digest = running_digest()
        for begin, end in self._chunks(len(kept), tensor.piece_bytes):
            self._account(tensor, digest, kept[begin:end], end)
        return digest.hexdigest()

    def _chunks(self, length: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """Cut a tensor so that no chunk is too long for the cache or lies in two pieces of its source."""
        begin = 0
        while begin < length:
            if begin:
                self._stop_if_cancelled(touched=True)
            end = min(begin + CHUNK_BYTES, length)
            if piece_bytes:
                end = min(end, begin - begin % piece_bytes + piece_bytes)
            yield begin, end
            begin = end

    def _account(self, tensor: OfferedTensor, digest: RunningDigest, chunk: memoryview, end: int) -> None:
        digest.update(chunk)
        if tensor.witness is not None:
            tensor.witness(end, digest)
        self._done += len(chunk)
        self._observer.progress(self._done, self._total)

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
                tensors_applied=len(self._digests), tensors=self._tensors, touched=touched
            )
