"""Tensors fed to the loaders of models: the guarantees of the applier, and auxiliary models in chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stamped import feed

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.applier.apply import Applied
from wsm.strategies.applier.feeding import ParameterMemory
from wsm.strategies.checkpoint_models import AuxiliaryNames
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor

WIDTH = 4


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "F32", shape)


class FusingLoader:
    """Three matrices of the checkpoint side by side in one parameter, and one transposed."""

    name = "main"
    parameters = (spec("qkv", WIDTH, 3 * WIDTH), spec("head", WIDTH, 2))

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._parts = 0

    def takes(self) -> Mapping[str, TensorSpec]:
        own = [*(spec(f"layers.0.{part}", WIDTH, WIDTH) for part in "qkv"), spec("head", 2, WIDTH)]
        return {each.name: each for each in own}

    def load_weights(
        self, tensors: Iterable[tuple[TensorSpec, memoryview]], parameters: ParameterMemory
    ) -> None:
        self._parts = 0
        for each, data in tensors:
            self.seen.append(each.name)
            values = np.frombuffer(data, np.float32).reshape(each.shape)
            if each.name == "head":
                array(parameters.memory("head"), WIDTH, 2)[:] = values.T
                parameters.complete("head")
                continue
            at = "qkv".index(each.name[-1]) * WIDTH
            array(parameters.memory("qkv"), WIDTH, 3 * WIDTH)[:, at : at + WIDTH] = values
            self._parts += 1
            if self._parts == 3:
                parameters.complete("qkv")


class DraftLoader:
    """Takes by name, and keeps account of the chunks that it was given."""

    name = "mtp"

    def __init__(self, names: AuxiliaryNames, checkpoint: Iterable[TensorSpec]) -> None:
        self._takes = {each.name: each for each in checkpoint if names.match(each.name)}
        self.chunks: list[list[str]] = []

    def takes(self) -> Mapping[str, TensorSpec]:
        return self._takes

    def load_weights(
        self, tensors: Iterable[tuple[TensorSpec, memoryview]], parameters: ParameterMemory
    ) -> None:
        self.chunks.append([])
        for each, data in tensors:
            self.chunks[-1].append(each.name)
            parameters.memory(each.name)[:] = data
            parameters.complete(each.name)


def array(memory: memoryview, *shape: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(memory, np.float32).reshape(shape)


def values(seed: int, specs: Iterable[TensorSpec]) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return {each.name: random.standard_normal(each.shape).astype(np.float32) for each in specs}


DRAFT = (spec("mtp_block.0.w", 3), spec("layers.2.w", 5), spec("mtp_norm", 2))
OTHERS = (spec("layers.20.w", 2), spec("layers.0.w", 2))
NAMES = AuxiliaryNames(first_layer=2, layers=1)


def stream(
    state: Mapping[str, np.ndarray[Any, Any]],
    *,
    lie: str = "",
    promised: bool = True,
    chunk: int = 16,
    finite: bool = False,
) -> Offer:
    """Tensors one by one through one buffer that is used again for each."""
    specs = [spec(name, *value.shape) for name, value in state.items()]
    buffer = bytearray(max(each.nbytes for each in specs))

    def tensors() -> Iterator[OfferedTensor]:
        for each in specs:
            data = state[each.name].tobytes()
            digest = digest_of(data)
            buffer[: len(data)] = data
            buffer[0] ^= each.name == lie
            view = memoryview(buffer)[: len(data)]
            yield OfferedTensor(each, "the trainer", lambda *_: None, digest, data=view, finite=finite)

    return Offer(
        version=1,
        tensors=tensors(),
        files=("the trainer",),
        manifest_digest=None,
        manifest_scope=ManifestScope.LOADED,
        declared=False,
        promised=tuple(specs) if promised else None,
        chunk_tensors=chunk,
    )


class Model:
    def __init__(self, *, draft: bool = True) -> None:
        self.main = FusingLoader()
        self.draft = DraftLoader(NAMES, (*DRAFT, *OTHERS))
        self.loaders = [self.main, self.draft] if draft else [self.main]
        self.target = MemoryTarget([*FusingLoader.parameters, *(DRAFT if draft else ())])
        self.tainted = 0
        self.checkpoint = values(1, [*self.main.takes().values(), *(DRAFT if draft else ())])

    def feed(self, offer: Offer | None = None, **options: Any) -> Applied:
        observer = LoadObserver(taint=self._taint, cancelled=options.pop("cancelled", bool))
        return feed(offer or stream(self.checkpoint), self.loaders, self.target, observer, **options)

    def _taint(self) -> None:
        self.tainted += 1


class HastyLoader(FusingLoader):
    """Opens a parameter before it asks for a tensor."""

    def load_weights(self, tensors, parameters):
        parameters.memory("qkv")
        raise parameters.memory("unheard of")


def test_memory_that_a_loader_opens_before_the_first_tensor_is_tainted_before():
    model = Model(draft=False)
    model.loaders = [HastyLoader()]
    with raising(errors.loader_contract, match="unheard of") as caught:
        model.feed()
    assert caught.value.touched
    assert model.tainted == 1


def test_a_loader_fuses_and_transposes_into_the_parameters_themselves():
    model = Model(draft=False)
    applied = model.feed()
    parts = [model.checkpoint[f"layers.0.{part}"] for part in "qkv"]
    assert np.array_equal(array(model.target.readable("qkv"), WIDTH, 3 * WIDTH), np.concatenate(parts, 1))
    assert np.array_equal(array(model.target.readable("head"), WIDTH, 2), model.checkpoint["head"].T)
    assert (applied.tensors, applied.verified, model.tainted) == (4, 4, 1)
    resident = [(each, digest_of(model.target.readable(each.name))) for each in FusingLoader.parameters]
    assert applied.digest == shard_digest(resident)


@incident("FastDeploy C2-19")
def test_auxiliary_models_get_copies_in_chunks_from_the_same_pass():
    model = Model()
    applied = model.feed(stream(model.checkpoint, chunk=2))
    assert model.draft.chunks == [["mtp_block.0.w", "layers.2.w"], ["mtp_norm"]]
    for each in DRAFT:  # although the buffer was used again before the chunk was full
        assert model.target.readable(each.name) == model.checkpoint[each.name].tobytes()
    assert applied.peak_extra_bytes == 8 * 4  # the larger chunk
    assert model.main.seen == ["layers.0.q", "layers.0.k", "layers.0.v", "head"]


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("mtp_norm.weight", True),
        ("model.mtp_block.0.up", True),
        ("model.layers.2.up", True),
        ("layers.3.up", True),
        ("model.layers.20.up", False),
        ("model.layers.12.up", False),
        ("model.layers.4.up", False),
        ("model.xlayers.2.up", False),
        ("head", False),
    ],
)
def test_layers_are_matched_by_their_whole_number(name, matches):
    assert AuxiliaryNames(first_layer=2, layers=2).match(name) is matches


def test_an_auxiliary_model_that_takes_nothing_is_an_error_before_anything_is_touched():
    model = Model()
    model.loaders = [model.main, DraftLoader(NAMES, OTHERS)]
    with raising(errors.no_auxiliary_tensors, match="mtp takes no tensor"):
        model.feed()
    assert model.tainted == 0


@pytest.mark.parametrize("promised", [True, False])
def test_a_stream_that_lacks_a_tensor_is_an_error_with_its_name(promised):
    model = Model()
    del model.checkpoint["mtp_norm"]
    with raising(errors.not_covered, match="mtp_norm") as caught:
        model.feed(stream(model.checkpoint, promised=promised))
    assert caught.value.touched == bool(model.tainted) == (not promised)


def test_a_stream_that_brings_a_tensor_twice_is_an_error_with_its_name():
    model = Model()
    offer = stream(model.checkpoint)
    twice = itertools.chain(offer.tensors, stream(model.checkpoint).tensors)
    with raising(errors.not_covered, match="1 duplicate"):
        model.feed(replace(offer, tensors=twice))


def test_a_tensor_of_another_shape_is_refused_before_the_loader_sees_it():
    model = Model(draft=False)
    model.checkpoint["layers.0.q"] = np.zeros((WIDTH, 1), np.float32)
    with raising("shape-mismatch", match=r"layers\.0\.q"):
        model.feed(stream(model.checkpoint, promised=False))
    assert (model.main.seen, model.tainted) == ([], 0)


@pytest.mark.parametrize(("lie", "seen"), [("layers.0.q", 0), ("head", 3)])
def test_a_corrupt_tensor_never_reaches_the_loader(lie, seen):
    model = Model(draft=False)
    with raising(errors.DigestMismatchError, match=lie) as caught:
        model.feed(stream(model.checkpoint, lie=lie))
    assert len(model.main.seen) == seen
    assert caught.value.touched == bool(model.tainted) == bool(seen)
    model.feed()
    assert np.array_equal(array(model.target.readable("head"), WIDTH, 2), model.checkpoint["head"].T)


@pytest.mark.parametrize(("name", "seen"), [("layers.0.q", 0), ("head", 3)])
def test_nan_where_it_is_forbidden_never_reaches_the_loader(name, seen):
    model = Model()
    model.checkpoint[name].flat[5] = np.nan
    with raising("not-finite", match=f"'{name}' .* element 5 ") as caught:
        model.feed(stream(model.checkpoint, finite=True))
    assert len(model.main.seen) == seen
    assert caught.value.touched == bool(model.tainted) == bool(seen)
    model.checkpoint[name].flat[5] = 1
    assert model.feed(stream(model.checkpoint, finite=True)).verified == len(model.checkpoint)


@pytest.mark.parametrize("looks", range(5))
def test_a_load_can_be_cancelled_between_two_tensors_and_says_whether_a_loader_was_given_any(looks):
    model = Model(draft=False)
    asked = iter([False] * looks)
    with raising(errors.LoadCancelledError) as caught:
        model.feed(cancelled=lambda: next(asked, True))
    assert caught.value.touched == bool(model.tainted) == bool(model.main.seen)
    assert caught.value.tensors_applied == max(looks - 1, 0)


class _Lazy(FusingLoader):
    def load_weights(self, tensors, parameters):
        next(iter(tensors))


class _Forgetful(FusingLoader):
    def load_weights(self, tensors, parameters):
        list(tensors)


class _Twice(FusingLoader):
    def load_weights(self, tensors, parameters):
        for _ in tensors:
            parameters.memory("qkv")
            parameters.complete("qkv")


class _Stranger(FusingLoader):
    def load_weights(self, tensors, parameters):
        next(iter(tensors))
        parameters.memory("nobody's")


class _Hasty(FusingLoader):
    def load_weights(self, tensors, parameters):
        next(iter(tensors))
        parameters.complete("head")


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (_Lazy, "and not the rest"),
        (_Forgetful, "2 parameters were not completed: 'qkv', 'head'"),
        (_Twice, "wrote 'qkv' twice"),
        (_Stranger, 'no parameter "nobody\'s"'),
        (_Hasty, "completed 'head' without writing"),
    ],
)
def test_a_loader_that_breaks_its_contract_is_named(loader, text):
    model = Model(draft=False)
    model.loaders = [loader()]
    with raising(errors.loader_contract, match=text) as caught:
        model.feed()
    assert caught.value.touched


def test_a_target_in_other_memory_gets_each_parameter_whole():
    class Elsewhere(MemoryTarget):
        """Takes one tensor at a time, as device memory does."""

        def __init__(self, specs):
            super().__init__(specs)
            self.moved: list[str] = []

        def written(self, name):
            self.moved.append(name)

    model = Model(draft=False)
    model.target = Elsewhere(FusingLoader.parameters)
    state = {name: model.checkpoint[name] for name in ("layers.0.q", "head", "layers.0.v", "layers.0.k")}
    model.feed(stream(state))
    assert model.target.moved == ["head", "qkv"]
    assert np.array_equal(array(model.target.readable("head"), WIDTH, 2), state["head"].T)


@pytest.mark.parametrize("promised", [True, False])
def test_progress_is_told_with_each_tensor_of_all_that_models_take(promised):
    model, told = Model(), []
    observer = LoadObserver(progress=lambda done, total: told.append((done, total)))
    feed(stream(model.checkpoint, promised=promised), model.loaders, model.target, observer)
    *each, total = itertools.accumulate(value.nbytes for value in model.checkpoint.values())
    assert told[: len(each) + 1] == [(done, total) for done in (*each, total)]


def test_an_offer_whose_bytes_have_to_be_read_is_fed_too():
    model = Model(draft=False)
    state = {name: value.tobytes() for name, value in model.checkpoint.items()}
    tensors = tuple(
        OfferedTensor.of_bytes(each, "a file", memoryview(state[each.name]), digest_of(state[each.name]))
        for each in model.main.takes().values()
    )
    ends: list[int] = []
    tensors[0].digest, tensors[0].check_chunk = None, lambda end, _: ends.append(end)
    offer = Offer(1, tensors, ("a file",), None, ManifestScope.LOADED, chunk_tensors=1)
    assert model.feed(offer).verified == 4, "the first by its chunks"
    assert ends == [tensors[0].spec.nbytes]
