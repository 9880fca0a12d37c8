"""NaN and infinity in a version that was published as finite, whatever brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from arrivals import ARRIVALS, as_parameters
from one_rank import Rank
from wrongs import State, make_state

from tests.raising import raising
from wsm.strategies import (
    BucketSender,
    DeltaSource,
    MemoryTarget,
    delta_between,
    errors,
    finite,
    load,
    publish_delta,
    publish_snapshot,
)
from wsm.strategies.delta._manifest import DeltaShard

GOOD, BETTER = make_state(seed=5, finite=True), make_state(seed=6, finite=True)

#: Where nothing stands that a second publication of the same version could be held against.
PUBLISHED_ANEW = sorted(
    name for name in ARRIVALS if name not in {"delta", "ipc_snapshot", "ipc_snapshot, resliced"}
)


#: Where whoever publishes waits for no rank, and says elements as they are in the state.
TOLD_AT_ONCE = sorted(name for name in ARRIVALS if name not in {"ipc_async", "ipc_snapshot, resliced"})


def with_nan(state: State, name: str, index: int) -> State:
    spec, data = state[name]
    dtype, bits = {"F32": ("<u4", 0x7FC0_0000), "BF16": ("<u2", 0x7FC0), "F16": ("<u2", 0x7C00)}[spec.dtype]
    array = np.frombuffer(data, dtype).copy()
    array[index] = bits
    return {**state, name: (spec, array.tobytes())}


@contextmanager
def trainer_that_does_not_look() -> Iterator[None]:
    """A trainer says finite whatever it publishes; what ranks look at is untouched by this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finite, "first_not_finite", lambda *_: None)
        yield


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("name", "index", "threads"),
    [("second.weight", 500_000, 2), ("large.weight", 0, 1), ("layer.0.bias", 23, 1)],
)
def test_nan_is_refused_by_name_and_a_good_version_loads_afterwards(arrival, name, index, threads):
    rank = Rank(arrival)
    arrival.publish(1, GOOD, finite=True)
    assert rank.load(1, threads=threads).verified == len(GOOD)
    with trainer_that_does_not_look():
        arrival.publish(2, with_nan(BETTER, name, index), finite=True)
        with raising("not-finite", match=f"'{name}' .* element {index} ") as caught:
            rank.load(2, threads=threads)
    touched = getattr(arrival, "touches", True)
    assert (caught.value.tensor, caught.value.index, caught.value.touched) == (name, index, touched)
    assert rank.tainted == 1 + touched
    arrival.publish(3, BETTER, finite=True)
    rank.load(3, threads=threads)
    assert rank.holds(BETTER)


@pytest.mark.slow_but
def test_nan_in_memory_with_its_axes_exchanged_is_refused_at_its_place_in_the_source(arrival):
    rank = Rank(arrival)
    rank.target = MemoryTarget((spec for spec, _ in GOOD.values()), transposed={"second.weight"})
    with trainer_that_does_not_look():
        arrival.publish(1, with_nan(GOOD, "second.weight", 300_001), finite=True)
        with raising("not-finite", match=r"'second\.weight' .* element 300001 "):
            rank.load(1)
    arrival.publish(2, GOOD, finite=True)
    rank.load(2)
    assert rank.holds(GOOD)


@pytest.mark.slow_but
@pytest.mark.parametrize("arrival", as_parameters(PUBLISHED_ANEW), indirect=True)
def test_a_promise_that_comes_with_the_same_tensors_is_made(arrival):
    bad = with_nan(GOOD, "large.weight", 7)
    rank = Rank(arrival)
    arrival.publish(1, bad)
    rank.load(1)
    with trainer_that_does_not_look():
        arrival.publish(1, bad, finite=True)
        with raising("not-finite"):  # a trainer that streams looks while the rank loads
            rank.load(1)


@pytest.mark.slow_but
@pytest.mark.parametrize("arrival", as_parameters(TOLD_AT_ONCE), indirect=True)
@pytest.mark.parametrize(("name", "index"), [("second.weight", 520_000), ("layer.0.bias", 3)])
def test_a_trainer_that_promises_finite_weights_is_told_where_they_are_not(arrival, name, index):
    arrival.publish(1, GOOD, finite=True)
    with raising(errors.trainer_tensor, match=f"'{name}' .* element {index} is not finite"):
        arrival.publish(2, with_nan(BETTER, name, index), finite=True)


def test_a_trainer_that_streams_is_told_so_before_it_waits_for_a_rank(tmp_path):
    bad = with_nan(GOOD, "layer.0.bias", 3)
    with (
        BucketSender(f"ipc://{tmp_path}/buckets") as trainer,
        raising(errors.trainer_tensor, match="'layer.0.bias' of rank 0 .* element 3 is not finite"),
    ):
        trainer.send(2, {0: bad}, finite=True)


@pytest.mark.parametrize("changed", ["steps", "embed.weight"])
def test_nan_in_a_tensor_that_a_change_leaves_as_it_is_is_refused_too(tmp_path, changed):
    base = with_nan(GOOD, "large.weight", 9)
    publish_snapshot(tmp_path, 1, {0: base}, durable=False)
    new = {**base, changed: BETTER[changed]}
    with trainer_that_does_not_look():
        publish_delta(tmp_path, 2, 1, {0: new}, base={0: base}, durable=False, finite=True)
    target = MemoryTarget(spec for spec, _ in base.values())
    source, tainted = DeltaSource(tmp_path, 0, device_id=0), []
    load(source, target, name="delta", version=1)
    with raising("not-finite", match=r"'large\.weight' .* element 9 ") as caught:
        load(source, target, name="delta", version=2, taint=lambda: tainted.append(True))
    assert caught.value.touched == bool(tainted)


def test_a_change_between_published_versions_promises_what_the_newer_one_does(tmp_path):
    source = DeltaSource(tmp_path, 0, device_id=0)
    publish_snapshot(tmp_path, 1, {0: GOOD}, durable=False)
    for version, state, promised in ((2, BETTER, True), (3, GOOD, False)):
        publish_snapshot(tmp_path, version, {0: state}, durable=False, finite=promised)
        delta_between(tmp_path, version - 1, version, crossover=2.0, durable=False)
        (file,) = (tmp_path / "deltas" / str(version)).glob("delta.tp0.manifest.json")
        assert DeltaShard.decode(file.read_bytes(), file=str(file)).finite is promised
    target = MemoryTarget(spec for spec, _ in GOOD.values())
    assert load(source, target, name="delta", version=2).verified == len(GOOD)
