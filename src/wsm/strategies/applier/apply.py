"""The one place where bytes reach a model, whatever strategy brings them.

The order is what makes a failure harmless or visible: coverage, dtypes and shapes of all tensors first (of
the first one, where they are known only as they come); then ``taint``, from which on the weights are not
whole; then each tensor is read, digested in the same pass while it is hot in the cache, and compared.
Memory that its owner lets us keep is digested where it lies and kept, if the target holds nothing for that
tensor; all else is copied, and turned round on the way where the target's memory has its axes exchanged.
Knows no files, no states, no paddle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from wsm.errors import InternalError
from wsm.strategies.applier.coverage import (
    RunningCoverage,
    Ties,
    check_coverage,
    check_kept,
    digests_held,
    promised_by,
)
from wsm.strategies.applier.memory_target import host_memory
from wsm.strategies.applier.tensor_copy import (
    CopyJob,
    Steps,
    check_finite_promise,
    copy_on_threads,
    copy_tensor,
    copy_transposed,
    digest_source,
    digest_tensor,
)
from wsm.strategies.digest import shard_digest
from wsm.strategies.errors import LoadCancelledError, tied_tensors_differ
from wsm.strategies.observer import LoadObserver, Taint
from wsm.strategies.offer import Offer, OfferedTensor
from wsm.strategies.tensor import (
    AdoptingTarget,
    StagedTarget,
    TensorSpec,
    WeightTarget,
    tied_names,
    transposed_names,
)
from wsm.strategies.transposing import block_bytes

# Tensors from this size on may go to other threads: their copy takes longer than to hand them over.
_SHARED_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was applied.

    Parameters
    ----------
    digest : str
        Digest of the tensors as they are in memory now; equal weights have an equal one.
    bytes, tensors : int
        How much was applied.
    verified : int
        How many of the tensors had a promised digest, which matched.
    peak_extra_bytes : int
        The most tensor bytes that were held beside the target's.
    adopted_bytes : int
        How many of the bytes were not copied: the target keeps the memory that they came in.
    missing : tuple of str
        Names of tensors that a partial load did not bring; they kept their bytes, which count in `digest`.
    unknown : tuple of str
        Names that the source has and the model does not, which were allowed and left out.
    through_models : bool
        Whether models took them that say nothing beforehand, and did with them what is theirs to know.
    auxiliary : int
        How many of the tensors were for auxiliary models, too, where those say nothing beforehand.
    tensor_set : str or None
        Which tensors such models were given (:mod:`wsm.strategies.applier.tensor_set`), for the `before` of
        the next load; None: they were given none.
    """

    digest: str
    bytes: int
    tensors: int
    verified: int
    peak_extra_bytes: int = 0
    adopted_bytes: int = 0
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    through_models: bool = False
    auxiliary: int = 0
    tensor_set: str | None = None


def apply_tensors(
    offer: Offer,
    target: WeightTarget,
    observer: LoadObserver,
    *,
    allowed_unknown: Collection[str] = (),
    partial: bool = False,
    collects: bool = False,
    threads: int = 1,
) -> Applied:
    """Check everything, then copy everything into `target`. Blocks until done.

    Parameters
    ----------
    offer : Offer
        The tensors, in the order in which they are to be read. What is not declared is checked when it comes,
        before it is written; what was promised of it, before the first one comes.
    target : WeightTarget
        Receives every tensor exactly once, whichever of its names it comes under.
    observer : LoadObserver
        Follows the load.
    allowed_unknown : collection of str
        Offered names that are left out if the target does not have them.
    partial : bool
        Whether tensors may be missing; those keep their bytes, which they must hold.
    collects : bool
        Whether what is not declared is collected in host memory, and checked there, before it is applied.
    threads : int
        How many may copy and digest where the offer may be read in parallel, or is collected, and the target
        takes bytes where they belong.

    Raises
    ------
    BadInputError
        Before the target was touched, if `declared` or promised.
    RefusedError
        If a tensor that is not brought holds no bytes. Nothing was touched.
    LoadCancelledError, DigestMismatchError, BadInputError, InternalError
        Whether the target was touched then, its `taint` has told; whatever ``read_into`` raises comes, too.
    """
    specs, tied = target.specs(), tied_names(target)
    ties = Ties(tied, allowed_unknown)
    threads = threads if offer.parallel or collects else 1
    if not offer.declared:
        if offer.promised is not None:
            rows = [(spec, promised_by(offer.files)) for spec in offer.promised]
            check_coverage(rows, specs, tied, allowed_unknown=allowed_unknown, partial=partial)
        if partial:
            known = {ties.own(spec.name) for spec in offer.promised or ()}
            check_kept(target, [name for name in specs if name not in known])
        coverage = RunningCoverage(
            specs, allowed_unknown=allowed_unknown, partial=partial, origins=offer.files
        )
        one_pass = _Pass(target, observer, specs.values())
        came = _as_they_come(offer.tensors, coverage, ties)
        with one_pass.counting():
            if collects:
                steps = one_pass.uncounted()
                applied = one_pass.run_on_threads([_collected(each, steps) for each in came], threads)
            else:
                applied = one_pass.run(came)
        return replace(applied, unknown=tuple(coverage.left_out))
    tensors = tuple(offer.tensors)
    rows = [(tensor.spec, tensor.origin) for tensor in tensors]
    check_coverage(rows, specs, tied, allowed_unknown=allowed_unknown, partial=partial)
    tensors = ties.take_all(tensors) if tied else tensors
    if partial:
        offered = {tensor.spec.name for tensor in tensors}
        check_kept(target, [name for name in specs if name not in offered])
    chosen = [tensor for tensor in tensors if tensor.spec.name in specs or tensor.repeats]
    one_pass = _Pass(target, observer, [tensor.spec for tensor in chosen if not tensor.repeats])
    with one_pass.counting():
        applied = one_pass.run_on_threads(chosen, threads)
    if len(chosen) == len(tensors):
        return applied
    left_out = [tensor.spec.name for tensor in tensors if not (tensor.repeats or tensor.spec.name in specs)]
    return replace(applied, unknown=tuple(dict.fromkeys(left_out)))


def _as_they_come(
    tensors: Iterable[OfferedTensor], coverage: RunningCoverage, ties: Ties
) -> Iterator[OfferedTensor]:
    for came in tensors:
        tensor = ties.take(came)
        if coverage.admits(ties.as_own(tensor.spec), tensor.origin, again=tensor.repeats):
            yield tensor
    coverage.finish()


class _Pass:
    """One pass over tensors that were checked before they are yielded."""

    def __init__(self, target: WeightTarget, observer: LoadObserver, specs: Collection[TensorSpec]) -> None:
        self._target = target
        # Asked once: what a target can do takes longer to find out than to copy a small tensor.
        self._adopting = target if isinstance(target, AdoptingTarget) else None
        self._staged = target if isinstance(target, StagedTarget) else None
        self._transposed = transposed_names(target)
        self._tied = tied_names(target)
        self._observer = observer
        self._taint = Taint(observer.taint)
        self._tensors = len(specs)
        self._total = sum(spec.nbytes for spec in specs)
        self._done = 0
        self._adopted = 0
        self._extra = 0
        self._verified = 0
        self._digests: list[tuple[TensorSpec, str]] = []
        self._jobs: list[CopyJob] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let a cancellation say how much was applied, also where a source saw it that does not know."""
        try:
            yield
        except LoadCancelledError as error:
            raise LoadCancelledError(
                tensors_applied=len(self._digests) + sum(bool(job.digest) for job in self._jobs),
                tensors=self._tensors,
            ) from error

    def run(self, tensors: Iterable[OfferedTensor]) -> Applied:
        steps = Steps(self._go_on, self._moved)
        steps.go_on()
        for tensor in tensors:
            steps.go_on()
            if tensor.stands:
                self._stand(tensor)
            elif tensor.repeats:
                self._compare(tensor)
            else:
                self._bring(tensor, steps)
        rest = []
        specs = self._target.specs()
        if len(self._digests) < len(specs):
            loaded = {spec.name for spec, _ in self._digests}
            missing = [name for name in specs if name not in loaded]
            rest = digests_held(self._target, missing, self._go_on)
        return Applied(
            bytes=self._done,
            tensors=len(self._digests),
            verified=self._verified,
            digest=shard_digest([*self._digests, *rest]),
            adopted_bytes=self._adopted,
            peak_extra_bytes=self._extra,
            missing=tuple(spec.name for spec, _ in rest),
        )

    def run_on_threads(self, tensors: list[OfferedTensor], threads: int) -> Applied:
        """Large tensors on several threads, then the others on this one: they would wait for its lock."""
        large = [tensor for tensor in tensors if self._shared(tensor)]
        if threads < 2 or len(large) < 2 or self._staged is not None:
            return self.run(tensors)
        self._go_on()
        self._taint()
        for tensor in large:
            self._go_on()
            kept = self._kept(tensor)
            memory = self._memory(tensor.spec) if kept is None else kept
            self._jobs.append(CopyJob(tensor, memory, kept is not None))
        copy_on_threads(self._jobs, threads, Steps(self._go_on, self._moved))
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            self._take_in(job.tensor, job.digest, job.memory if job.kept else None)
        return self.run(tensor for tensor in tensors if not self._shared(tensor))

    def _bring(self, tensor: OfferedTensor, steps: Steps) -> None:
        """Bring a tensor to where it belongs, or keep it where it lies."""
        self._taint()
        kept = self._kept(tensor)
        if kept is not None:
            self._take_in(tensor, digest_tensor(tensor, kept, steps), kept)
            return
        memory = self._memory(tensor.spec)
        if tensor.spec.name in self._transposed and memory:
            self._extra = max(self._extra, block_bytes(tensor.spec))
            digest = copy_transposed(tensor, memory, steps)
        else:
            digest = copy_tensor(tensor, memory, steps)
        self._take_in(tensor, digest, None)

    def _go_on(self) -> None:
        self._observer.stop_if_cancelled(self._tensors, applied=len(self._digests))

    def _moved(self, nbytes: int) -> None:
        self._done += nbytes
        self._observer.progress(self._done, self._total)

    def uncounted(self) -> Steps:
        """Return steps of a read that brings nothing: it can be cancelled, and shows that the load lives."""
        return Steps(self._go_on, lambda _nbytes: self._moved(0))

    def _compare(self, tensor: OfferedTensor) -> None:
        """See that a tensor is what was applied under another name; where both were promised, they are."""
        own = self._tied.get(tensor.spec.name, tensor.spec.name)
        applied = next(digest for spec, digest in reversed(self._digests) if spec.name == own)
        came = tensor.digest if tensor.check_chunk is None else None
        if (came or digest_source(tensor, self.uncounted())) != applied:
            raise tied_tensors_differ(tensor=own, name=tensor.spec.name, origin=tensor.origin)

    def _stand(self, tensor: OfferedTensor) -> None:
        """Count a tensor that is where it belongs already."""
        if tensor.finite and tensor.spec.nbytes:
            check_finite_promise(tensor, self._target.readable(tensor.spec.name))
        self._verified += 1
        self._digests.append((tensor.spec, tensor.digest or ""))
        self._moved(tensor.spec.nbytes)

    def _take_in(self, tensor: OfferedTensor, digest: str, kept: memoryview | None) -> None:
        """Give the target what is complete and verified."""
        if kept is not None and self._adopting is not None:
            self._adopting.adopt(tensor.spec.name, kept)
            self._adopted += len(kept)
        elif self._staged is not None:
            self._staged.written(tensor.spec.name)
        self._verified += tensor.digest is not None or tensor.check_chunk is not None
        self._digests.append((tensor.spec, digest))

    def _kept(self, tensor: OfferedTensor) -> memoryview | None:
        """Return the source's own memory if the target will keep it instead of a copy."""
        if tensor.memory is None or self._adopting is None or not tensor.spec.nbytes:
            return None
        if tensor.spec.name in self._transposed:
            return None
        return tensor.memory() if self._adopting.adopts(tensor.spec.name) else None

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
            raise InternalError(
                f"the target's memory for {spec.name!r} cannot take the tensor: {problem}",
                code="target-contract",
                tensor=spec.name,
                problem=problem,
            )
        return memory

    def _shared(self, tensor: OfferedTensor) -> bool:
        """Whether several threads gain by taking such tensors off each other.

        One that is turned round may have to ask the target for what lies there, as this thread alone may.
        """
        large = tensor.spec.nbytes >= _SHARED_BYTES and not tensor.stands and not tensor.repeats
        return large and tensor.spec.name not in self._transposed


def _collected(tensor: OfferedTensor, steps: Steps) -> OfferedTensor:
    """Return a tensor of a stream, verified, in host memory that stays: nothing was touched. Blocks.

    A stream without a declaration is known only when it has ended, and what is wrong with any tensor but the
    first would cost the weights that serve. No more is held than the model has.
    """
    steps.go_on()
    if tensor.memory is None:
        data = host_memory(tensor.spec.nbytes)
        digest = copy_tensor(tensor, data, steps)
    else:
        data = tensor.memory()
        digest = digest_tensor(tensor, data, steps)
    promised = tensor.digest is not None or tensor.check_chunk is not None
    read = OfferedTensor.of_bytes(tensor.spec, tensor.origin, data, digest if promised else None)
    return replace(read, memory=tensor.memory, repeats=tensor.repeats)
