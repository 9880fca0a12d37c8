"""Tensors of an offer, checked and verified, fed to the loaders of models instead of applied by name.

The guarantees are the applier's: coverage before the first byte where it is known, each tensor compared and
its digest checked before a loader sees it, the taint before the first is handed out, cancellation between
two, and at the end every parameter written once. The main model takes the stream as it comes; auxiliary
models get copies in chunks, because the memory of what has passed may be used again. Knows no
transport and no model.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from wsm.errors import InternalError, NoRoomError, RefusedError, UnfitError
from wsm.strategies import errors
from wsm.strategies.applier.apply import Applied
from wsm.strategies.applier.coverage import RunningCoverage, check_coverage, digests_held, promised_by
from wsm.strategies.applier.tensor_copy import Steps, copy_tensor, digest_tensor
from wsm.strategies.applier.tensor_set import text_of
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.digest import shard_digest
from wsm.strategies.errors import LoadCancelledError, listed
from wsm.strategies.observer import LoadObserver, Taint
from wsm.strategies.offer import Offer, OfferedTensor
from wsm.strategies.tensor import ReplaceableTarget, StagedTarget, TensorSpec, WeightTarget


class ParameterMemory:
    """The memory of a model's parameters, while loaders write into it.

    Parameters
    ----------
    target : WeightTarget
        The parameters.
    taint : callable
        Told before the first of them is handed out.
    """

    def __init__(self, target: WeightTarget, taint: Callable[[], object]) -> None:
        self._target = target
        self._taint = taint
        self._staged = target if isinstance(target, StagedTarget) else None
        self._specs = target.specs()
        self._open: dict[str, memoryview] = {}
        self._whole: set[str] = set()
        #: Who writes now, for messages.
        self.loader = "the model"

    def memory(self, name: str) -> memoryview:
        """Return the bytes of a parameter (C order, writable, format ``B``), the same until it is complete.

        Host memory of a target in device memory is moved when the parameter is complete.

        Raises
        ------
        InternalError
            If there is no such parameter, or it is complete already.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        if name not in self._specs:
            raise self._broken(f"there is no parameter {name!r}")
        if name in self._whole:
            raise self._broken(f"it wrote {name!r} twice")
        self._taint()
        if self._staged is None:
            self._open[name] = self._target.writable(name)
        else:  # it holds the bytes of one parameter at a time, and loaders have several open
            self._open[name] = memoryview(bytearray(self._specs[name].nbytes))
        return self._open[name]

    def complete(self, name: str) -> None:
        """Say that every byte of a parameter was written.

        Raises
        ------
        InternalError
            If it was never open.
        """
        if name not in self._open:
            raise self._broken(f"it completed {name!r} without writing it")
        memory = self._open.pop(name)
        if self._staged is not None:
            copy_bytes(memoryview(memory), self._target.writable(name))
            self._staged.written(name)
        self._whole.add(name)

    def check(self) -> None:
        """See that every parameter is complete.

        Raises
        ------
        InternalError
            If one is not.
        """
        left = [name for name in self._specs if name not in self._whole]
        if left:
            shown = ", ".join(map(repr, left[:5]))
            raise errors.loader_contract(
                loader="the model",
                problem=f"{len(left)} parameters were not completed: {shown}",
            )

    def _broken(self, problem: str) -> InternalError:
        return errors.loader_contract(loader=self.loader, problem=problem)


class ModelLoader(Protocol):
    """One model's way to take tensors of a stream. The first of a runner is the main model's."""

    @property
    def name(self) -> str:
        """What messages call the model."""
        ...

    def takes(self) -> Mapping[str, TensorSpec]:
        """Every tensor that it needs, under the stream's name; known without any memory held."""
        ...

    def load_weights(
        self, tensors: Iterable[tuple[TensorSpec, memoryview]], parameters: ParameterMemory
    ) -> None:
        """Write tensors where they belong, until the iterable ends. Blocks.

        The main model gets the whole stream in one call; an auxiliary one gets it in several, some tensors
        each. The bytes (read-only, flat) are valid until the next tensor is asked for. They are verified.
        """
        ...


def feed(
    offer: Offer,
    loaders: Sequence[ModelLoader | CheckpointModel],
    target: WeightTarget,
    observer: LoadObserver,
    *,
    partial: bool = False,
    allowed_unknown: Collection[str] = (),
    before: Mapping[str, TensorSpec] | None = None,
    anew: bool = False,
) -> Applied:
    """Feed every tensor of `offer` to the loaders, which write into `target`. Blocks until done.

    Where they say nothing beforehand a load is refused if a name comes twice, if what a manifest promised has
    not come or does not match, if an auxiliary model was given nothing, or if an element of parameters that
    held no memory was not written.

    Parameters
    ----------
    offer : Offer
        What comes, and how many tensors of it an auxiliary model gets at once.
    loaders : sequence of ModelLoader, or of CheckpointModel
        The main model's, then those of auxiliary models.
    target : WeightTarget
        The parameters of all of them.
    observer : LoadObserver
        Follows the load.
    partial : bool
        Whether tensors may be missing, which is refused.
    allowed_unknown : collection of str
        Names that may come although no loader takes them.
    before : mapping of str to TensorSpec, optional
        What the last whole version brought, which one has to bring as well for models that say nothing
        beforehand. Without it every element of every parameter has to be written.
    anew : bool
        Whether other tensors may come all the same, as without `before`.

    Returns
    -------
    Applied
        Bytes and tensors are the stream's; the digest is that of the parameters, read back.

    Raises
    ------
    RefusedError, NoRoomError
        If the load is partial, or `target` is none that such models write into, as what is staged is not.
        Nothing was changed.
    BadInputError
        If an auxiliary model takes nothing (nothing was changed), or the stream is not what the loaders take.
    DigestMismatchError, LoadCancelledError, InternalError
        As for every load.
    """
    if partial:
        raise RefusedError(
            "a partial update cannot go through the loaders of models: what is missing may be half of a "
            "fused parameter; bring a whole version, or name a strategy that applies by name",
            code="partial-feed",
        )
    models = [loader for loader in loaders if isinstance(loader, CheckpointModel)]
    if models and not isinstance(target, ReplaceableTarget):
        raise NoRoomError(
            f"{models[0].name} writes a version into its own parameters, and {type(target).__name__} holds "
            "others; nothing was changed: update without --hot",
            code="models-write-in-place",
            model=models[0].name,
            target=type(target).__name__,
        )
    observer = replace(observer, taint=Taint(observer.taint))
    if models:
        return _Feeding(models, target, observer, offer, before=before, anew=anew).fed()
    parameters = ParameterMemory(target, observer.taint)
    declared = [_DeclaredModel(each, parameters) for each in loaders if not isinstance(each, CheckpointModel)]
    feeding = _Feeding(declared, target, observer, offer, allowed_unknown=allowed_unknown)
    return feeding.fed(parameters)


class _Feeding:
    """One pass of a stream: each tensor verified, given to the main model, in copies to auxiliary ones."""

    def __init__(
        self,
        models: Sequence[CheckpointModel | _DeclaredModel],
        target: WeightTarget,
        observer: LoadObserver,
        offer: Offer,
        *,
        allowed_unknown: Collection[str] = (),
        before: Mapping[str, TensorSpec] | None = None,
        anew: bool = False,
    ) -> None:
        self._main, *self._auxiliaries = models
        self._allowed_unknown = allowed_unknown
        self._offer, self._target, self._observer = offer, target, observer
        self._taint = Taint(observer.taint)
        self._done = self._verified = self._extra = self._tensors = 0
        known = offer.known
        self._promised = offer.promised if known is None else [tensor.spec for tensor in known]
        declared = [model.takes for model in models if isinstance(model, _DeclaredModel)]
        wanted = {name: spec for takes in declared for name, spec in takes.items()} if declared else None
        if wanted is None and self._promised is not None:
            wanted = {spec.name: spec for spec in self._promised}
        self._wanted = wanted or {}
        self._coverage = RunningCoverage(wanted, allowed_unknown=allowed_unknown, origins=offer.files)
        self._chunk: list[tuple[TensorSpec, memoryview]] = []
        self._given = [0] * len(self._auxiliaries)
        self._total = sum(spec.nbytes for spec in self._wanted.values())
        # Of models that say nothing beforehand: what they must be brought, and what is seen to be written.
        self._before, self._last = None if anew else before, before or {}
        self._marked: list[str] = []

    def fed(self, parameters: ParameterMemory | None = None) -> Applied:
        """Feed, see that parameters were written whole, and say what came of it. Blocks.

        Without `parameters` by models that say nothing beforehand, and write into their own.
        """
        for auxiliary in self._auxiliaries if self._wanted else ():
            if not any(map(auxiliary.match, self._wanted)):
                raise errors.no_auxiliary_tensors(loader=auxiliary.name)
        if self._promised is not None:
            rows = ((spec, promised_by(self._offer.files)) for spec in self._promised)
            check_coverage(rows, self._wanted, allowed_unknown=self._allowed_unknown)
            self._compare(self._wanted)
        ended = False

        def stream() -> Iterator[tuple[TensorSpec, memoryview]]:
            nonlocal ended
            yield from self._stream()
            ended = True

        try:
            self._main.load_checkpoint(stream())
        except LoadCancelledError as error:  # a source that saw it does not know how much was applied
            raise LoadCancelledError(tensors_applied=self._tensors, tensors=len(self._wanted)) from error
        if not ended:
            problem = f"it took {self._tensors} tensors and not the rest"
            raise errors.loader_contract(loader=self._main.name, problem=problem)
        for auxiliary, given in zip(self._auxiliaries, self._given, strict=True):
            if not given:
                raise errors.no_auxiliary_tensors(loader=auxiliary.name)
        if parameters is None:
            self._check_written()
        else:
            parameters.check()
        digests = digests_held(
            self._target, self._target.specs(), lambda: self._observer.progress(self._done, self._done)
        )
        return Applied(
            bytes=self._done,
            tensors=self._tensors,
            verified=self._verified,
            digest=shard_digest(digests),
            peak_extra_bytes=self._extra,
            unknown=tuple(self._coverage.left_out),
            through_models=parameters is None,
            auxiliary=sum(self._given) if parameters is None else 0,
            tensor_set=text_of(self._coverage.came.values()) if parameters is None else None,
        )

    def _stream(self) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Yield what the main model takes; give the auxiliary ones theirs on the way."""
        self._go_on()
        for tensor in self._offer.tensors:
            self._go_on()
            spec = tensor.spec
            if not self._coverage.admits(spec, tensor.origin):
                continue
            if self._before is not None and self._before.get(spec.name) != spec:
                self._compare({**self._before, spec.name: spec})
            data = self._verified_bytes(tensor)
            if not self._taint.touched:
                self._taint()
                self._begin()
            if any(auxiliary.match(spec.name) for auxiliary in self._auxiliaries):
                self._chunk.append((spec, memoryview(bytes(data))))
            if not isinstance(self._main, _DeclaredModel) or self._main.match(spec.name):
                yield spec, data
            self._done += len(data)
            self._tensors += 1
            self._observer.progress(self._done, self._total or self._done)
            if len(self._chunk) >= (self._offer.chunk_tensors or 1):
                self._flush()
        self._coverage.finish()
        self._compare(self._coverage.came)
        self._flush()

    def _begin(self) -> None:
        """Give the parameters of models that say nothing memory in which it is seen what no loader writes."""
        if not isinstance(self._target, ReplaceableTarget) or isinstance(self._main, _DeclaredModel):
            return
        names = list(self._target.specs())
        spared = {name for pattern in self._offer.unwritten for name in fnmatch.filter(names, pattern)}
        self._marked = self._target.restore(spared, over_all=self._before is None)

    def _check_written(self) -> None:
        left = self._target.recapture(self._marked) if isinstance(self._target, ReplaceableTarget) else {}
        if left:
            lacks = [name for name in self._last if name not in self._coverage.came]
            lacking = listed([repr(name) for name in lacks]) if lacks else "their tensors"
            shown = listed([f"{name!r} ({count} elements)" for name, count in left.items()])
            raise UnfitError(
                f"{len(left)} parameters are not written whole: {shown}; what came from "
                f"{listed(self._offer.files)} lacks {lacking}; send the whole checkpoint, correct the "
                "model's load_weights, or name what it leaves by itself (a padded vocabulary) in rsync: "
                "{unwritten: [...]}",
                code="parameters-unwritten",
                left=dict(left),
                lacks=tuple(lacks),
            )

    def _compare(self, came: Mapping[str, TensorSpec]) -> None:
        """Refuse other tensors than those of the version before, if these are known."""
        before = self._before
        if before in (None, came):
            return
        found = {
            "missing": [name for name in before if name not in came],
            "new": [name for name in came if name not in before],
            "of another dtype or shape": [
                name for name in came if before.get(name, came[name]) != came[name]
            ],
        }
        shown = [
            f"{len(names)} {kind}: {listed([repr(name) for name in names])}"
            for kind, names in found.items()
            if names
        ]
        raise UnfitError(
            f"the version does not bring the tensors of the last whole version: {'; '.join(shown)}; they "
            f"come from {listed(self._offer.files)}; {'' if self._taint.touched else 'nothing was changed; '}"
            "send the whole checkpoint, or update with --force if the model's tensors have changed",
            code="other-tensors",
            missing=tuple(found["missing"]),
            origins=tuple(self._offer.files),
        )

    def _flush(self) -> None:
        """Give the auxiliary models what was copied for them, and let the copies go."""
        chunk, self._chunk = self._chunk, []
        self._extra = max(self._extra, sum(len(data) for _, data in chunk))
        for place, auxiliary in enumerate(self._auxiliaries):
            own = [(spec, data) for spec, data in chunk if auxiliary.match(spec.name)]
            if own:
                self._given[place] += len(own)
                auxiliary.load_checkpoint(iter(own))

    def _verified_bytes(self, tensor: OfferedTensor) -> memoryview:
        if tensor.data is None:
            data = memoryview(bytearray(tensor.spec.nbytes))
            copy_tensor(tensor, data, Steps())
            self._extra = max(self._extra, len(data))
        else:
            data = tensor.data
            digest_tensor(tensor, data, Steps())
        self._verified += tensor.digest is not None or tensor.check_chunk is not None
        return data.toreadonly()

    def _go_on(self) -> None:
        self._observer.stop_if_cancelled(len(self._wanted), applied=self._tensors)


class _DeclaredModel:
    """A model that says beforehand what it takes, given a checkpoint like one that does not."""

    def __init__(self, loader: ModelLoader, parameters: ParameterMemory) -> None:
        self.name, self.takes = loader.name, loader.takes()
        self._loader, self._parameters = loader, parameters

    def match(self, name: str) -> bool:
        return name in self.takes

    def load_checkpoint(self, tensors: Iterable[tuple[TensorSpec, memoryview]]) -> None:
        outer, self._parameters.loader = self._parameters.loader, self.name
        self._loader.load_weights(tensors, self._parameters)
        self._parameters.loader = outer
