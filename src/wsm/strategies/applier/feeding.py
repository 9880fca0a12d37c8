"""Tensors of an offer, checked and verified, fed to the loaders of models instead of applied by name.

The guarantees are the applier's: coverage before the first byte where it is known, each tensor compared and
its digest checked before a loader sees it, the taint before the first is handed out, cancellation between
two, and at the end every parameter written once. The main model takes the stream as it comes; auxiliary
models get copies in chunks, because the memory of what has passed may be used again. Knows no
transport and no model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from wsm.strategies import errors
from wsm.strategies.applier.apply import Applied
from wsm.strategies.applier.copying import CHUNK_BYTES
from wsm.strategies.applier.coverage import RunningCoverage, check_coverage, promised_by
from wsm.strategies.applier.loaders import ModelLoader, ParameterMemory
from wsm.strategies.applier.tensor_copy import check_promised
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.digest import digest_of, running_digest, shard_digest
from wsm.strategies.errors import DigestMismatchError, LoadCancelledError
from wsm.strategies.observer import LoadObserver, Taint
from wsm.strategies.offer import Offer, OfferedTensor
from wsm.strategies.tensor import ReplaceableTarget, TensorSpec, WeightTarget


def feed_models(
    offer: Offer, models: Sequence[CheckpointModel], target: WeightTarget, observer: LoadObserver
) -> Applied:
    """Feed every tensor of `offer` to models that say nothing beforehand. Blocks until done.

    What can be seen is seen: no name comes twice, all that a manifest promised has come and matched, an
    auxiliary model was given something, and of parameters that held no memory every one was written.

    Raises
    ------
    NoRoomError
        If `target` is none that such models write into, as what is staged is not. Nothing was changed.
    BadInputError, DigestMismatchError, NotFiniteError, LoadCancelledError, InternalError
        Their ``touched`` says whether anything was changed.
    """
    if not isinstance(target, ReplaceableTarget):
        raise errors.models_write_in_place(model=models[0].name, target=type(target).__name__)
    return _FeedingModels(models, target, observer, offer.chunk_tensors or 1).run(offer)


def feed_loaders(
    offer: Offer,
    loaders: Sequence[ModelLoader],
    target: WeightTarget,
    observer: LoadObserver,
    *,
    allowed_unknown: Collection[str] = (),
) -> Applied:
    """Feed every tensor of `offer` to the loaders, which write into `target`. Blocks until done.

    Parameters
    ----------
    offer : Offer
        What comes, and how many tensors of it an auxiliary model gets at once.
    loaders : sequence of ModelLoader
        The main model's, then those of auxiliary models.
    target : WeightTarget
        The parameters of all of them.
    observer : LoadObserver
        Follows the load.
    allowed_unknown : collection of str
        Names that may come although no loader takes them.

    Returns
    -------
    Applied
        Bytes and tensors are the stream's; the digest is that of the parameters, read back.

    Raises
    ------
    BadInputError
        If an auxiliary model takes nothing. Nothing was changed.
    BadInputError
        If the stream is not what the loaders take; ``touched`` says whether anything was changed.
    DigestMismatchError, NotFiniteError, LoadCancelledError, InternalError
        Their ``touched`` says whether anything was changed.
    """
    return _Feeding(loaders, target, observer, offer.chunk_tensors or 1, allowed_unknown).run(offer)


class _Verifying:
    """What every pass of a stream does with a tensor: read and verify it, and count."""

    def __init__(self, target: WeightTarget, observer: LoadObserver) -> None:
        self._target = target
        self._observer = observer
        self._taint = Taint(observer.taint)
        self._done = self._tensors = self._verified = self._extra = self._total = 0
        self._wanted: Mapping[str, TensorSpec] = {}

    def _verified_bytes(self, tensor: OfferedTensor) -> memoryview:
        data = memoryview(bytearray(tensor.spec.nbytes)) if tensor.data is None else tensor.data
        digest = running_digest()
        step = tensor.piece_bytes or CHUNK_BYTES
        for begin in range(0, len(data), step):
            chunk = data[begin : begin + step]
            if tensor.data is None:
                tensor.read_into(begin, chunk)
            digest.update(chunk)
            if tensor.check_chunk is not None:
                tensor.check_chunk(begin + len(chunk), digest)
        if tensor.data is None:
            self._extra = max(self._extra, len(data))
        self._verified += tensor.digest is not None or tensor.check_chunk is not None
        if tensor.digest is not None:
            actual = digest.hexdigest()
            if actual != tensor.digest:
                raise DigestMismatchError(
                    tensor=tensor.spec.name,
                    origin=tensor.origin,
                    expected=tensor.digest,
                    actual=actual,
                    touched=self._taint.touched,
                )
        check_promised(tensor, data, touched=self._taint.touched)
        return data.toreadonly()

    def _read_back(self) -> str:
        """Return the digest of the parameters as they are in memory now."""
        digests = []
        for name, spec in self._target.specs().items():
            digests.append((spec, digest_of(self._target.readable(name))))
            self._observer.progress(self._done, self._done)
        return shard_digest(digests)

    def _stop_if_cancelled(self) -> None:
        if self._observer.cancelled():
            raise self._cancelled()

    def _cancelled(self) -> LoadCancelledError:
        return LoadCancelledError(
            tensors_applied=self._tensors, tensors=len(self._wanted), touched=self._taint.touched
        )


class _Feeding(_Verifying):
    """One pass of a stream through the loaders."""

    def __init__(
        self,
        loaders: Sequence[ModelLoader],
        target: WeightTarget,
        observer: LoadObserver,
        chunk_tensors: int,
        allowed_unknown: Collection[str],
    ) -> None:
        super().__init__(target, observer)
        self._main, *self._auxiliaries = loaders
        self._chunk_tensors = chunk_tensors
        self._allowed_unknown = allowed_unknown
        self._parameters = ParameterMemory(target, self._taint)
        self._by_main = self._main.takes()
        self._by_auxiliaries = [auxiliary.takes() for auxiliary in self._auxiliaries]
        wanted = dict(self._by_main)
        for takes in self._by_auxiliaries:
            wanted.update(takes)
        self._wanted = wanted
        self._chunk: list[tuple[TensorSpec, memoryview]] = []
        self._ended = False
        self._unknown: Mapping[str, None] = {}

    def run(self, offer: Offer) -> Applied:
        for auxiliary, takes in zip(self._auxiliaries, self._by_auxiliaries, strict=True):
            if not takes:
                raise errors.no_auxiliary_tensors(loader=auxiliary.name)
        self._total = sum(spec.nbytes for spec in self._wanted.values())
        promised = [tensor.spec for tensor in offer.known or ()] if offer.declared else offer.promised
        if promised is not None:
            rows = ((spec, promised_by(offer.files)) for spec in promised)
            check_coverage(rows, self._wanted, allowed_unknown=self._allowed_unknown)
        self._parameters.used_by(self._main.name)
        try:
            self._main.load_weights(self._stream(offer), self._parameters)
        except LoadCancelledError as error:  # a source that saw it does not know how much was applied
            raise self._cancelled() from error
        if not self._ended:
            raise errors.loader_contract(
                loader=self._main.name,
                problem=f"it took {self._tensors} tensors and not the rest",
                touched=self._taint.touched,
            )
        self._parameters.check()
        return Applied(
            nbytes=self._done,
            tensors=self._tensors,
            verified=self._verified,
            digest=self._read_back(),
            extra_bytes=self._extra,
            unknown=tuple(self._unknown),
        )

    def _stream(self, offer: Offer) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Yield what the main model takes; give the auxiliary ones theirs on the way."""
        coverage = RunningCoverage(self._wanted, allowed_unknown=self._allowed_unknown, origins=offer.files)
        self._unknown = coverage.left_out
        self._stop_if_cancelled()
        for tensor in offer.tensors:
            self._stop_if_cancelled()
            if not coverage.admits(tensor.spec, tensor.origin):
                continue
            data = self._verified_bytes(tensor)
            self._taint()
            if any(tensor.spec.name in takes for takes in self._by_auxiliaries):
                self._chunk.append((tensor.spec, memoryview(bytes(data))))
            if tensor.spec.name in self._by_main:
                yield tensor.spec, data
            self._done += len(data)
            self._tensors += 1
            self._observer.progress(self._done, self._total)
            if len(self._chunk) >= self._chunk_tensors:
                self._flush()
        coverage.finish()
        self._flush()
        self._ended = True

    def _flush(self) -> None:
        """Give the auxiliary models what was copied for them, and let the copies go."""
        chunk, self._chunk = self._chunk, []
        self._extra = max(self._extra, sum(len(data) for _, data in chunk))
        for auxiliary, takes in zip(self._auxiliaries, self._by_auxiliaries, strict=True):
            own = [(spec, data) for spec, data in chunk if spec.name in takes]
            if own:
                self._parameters.used_by(auxiliary.name)
                auxiliary.load_weights(iter(own), self._parameters)
        self._parameters.used_by(self._main.name)


class _FeedingModels(_Verifying):
    """One pass of a stream through models that say nothing beforehand."""

    def __init__(
        self,
        models: Sequence[CheckpointModel],
        target: ReplaceableTarget,
        observer: LoadObserver,
        chunk_tensors: int,
    ) -> None:
        super().__init__(target, observer)
        self._models = target
        self._main, *self._auxiliaries = models
        self._chunk_tensors = chunk_tensors
        self._chunk: list[tuple[TensorSpec, memoryview]] = []
        self._given = [0] * len(self._auxiliaries)
        self._restored: list[str] = []
        self._ended = False

    def run(self, offer: Offer) -> Applied:
        promised = [tensor.spec for tensor in offer.known or ()] if offer.declared else offer.promised
        if promised is not None:
            self._wanted = {spec.name: spec for spec in promised}
            check_coverage(((spec, promised_by(offer.files)) for spec in promised), self._wanted)
            for auxiliary in self._auxiliaries:
                if not any(auxiliary.match(name) for name in self._wanted):
                    raise errors.no_auxiliary_tensors(loader=auxiliary.name)
        self._total = sum(spec.nbytes for spec in self._wanted.values())
        try:
            self._main.load_checkpoint(self._stream(offer, None if promised is None else self._wanted))
        except LoadCancelledError as error:  # a source that saw it does not know how much was applied
            raise self._cancelled() from error
        if not self._ended:
            self._broken(self._main.name, f"it took {self._tensors} tensors and not the rest")
        for auxiliary, given in zip(self._auxiliaries, self._given, strict=True):
            if not given:
                raise errors.no_auxiliary_tensors(loader=auxiliary.name, touched=self._taint.touched)
        left = self._models.recapture(self._restored)
        if left:
            shown = errors.listed([repr(name) for name in left])
            self._broken("the model", f"{len(left)} parameters were not written: {shown}")
        return Applied(
            nbytes=self._done,
            tensors=self._tensors,
            verified=self._verified,
            digest=self._read_back(),
            extra_bytes=self._extra,
            through_models=True,
            auxiliary=sum(self._given),
        )

    def _stream(
        self, offer: Offer, wanted: Mapping[str, TensorSpec] | None
    ) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Yield every tensor; give the auxiliary models theirs on the way."""
        seen: set[str] = set()
        self._stop_if_cancelled()
        for tensor in offer.tensors:
            self._stop_if_cancelled()
            name = tensor.spec.name
            if name in seen:
                touched = self._taint.touched
                raise errors.not_covered(duplicate=[name], origins=[tensor.origin], touched=touched)
            seen.add(name)
            data = self._verified_bytes(tensor)
            if not self._taint.touched:
                self._taint()
                self._restored = self._models.restore()
            if any(auxiliary.match(name) for auxiliary in self._auxiliaries):
                self._chunk.append((tensor.spec, memoryview(bytes(data))))
            yield tensor.spec, data
            self._done += len(data)
            self._tensors += 1
            self._observer.progress(self._done, self._total or self._done)
            if len(self._chunk) >= self._chunk_tensors:
                self._flush()
        missing = [name for name in wanted or () if name not in seen]
        if missing or not seen:
            raise errors.not_covered(missing=missing, origins=offer.files, touched=self._taint.touched)
        self._flush()
        self._ended = True

    def _flush(self) -> None:
        """Give the auxiliary models what was copied for them, and let the copies go."""
        chunk, self._chunk = self._chunk, []
        self._extra = max(self._extra, sum(len(data) for _, data in chunk))
        for place, auxiliary in enumerate(self._auxiliaries):
            own = [(spec, data) for spec, data in chunk if auxiliary.match(spec.name)]
            if own:
                self._given[place] += len(own)
                auxiliary.load_checkpoint(iter(own))

    def _broken(self, loader: str, problem: str) -> None:
        raise errors.loader_contract(loader=loader, problem=problem, touched=self._taint.touched)
