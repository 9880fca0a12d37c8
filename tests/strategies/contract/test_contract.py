"""What every strategy guarantees, whatever it brings weights with. One suite for all of them.

A wrong version is a typed error that names the file or peer and what was expected; it leaves the target
as it was, or marks it as touched before the first byte; and a good version loads afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable

import numpy as np
import pytest
from arrivals import ARRIVALS, Arrival
from one_rank import BYTES, A, B, Rank, digest_of_state
from watched_target import WatchedTarget, no_collector
from wrongs import State, Wrong

from tests.descriptors import open_before, open_descriptors
from tests.incident import incident
from tests.raising import matches, raising
from wsm.errors import WsmError
from wsm.strategies import STRATEGIES, MemoryTarget, errors, inspect, load
from wsm.strategies.offer import ManifestScope
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec


@incident("FastDeploy#7472")
def test_every_registered_strategy_keeps_the_contract() -> None:
    assert {arrival.strategy for arrival in ARRIVALS.values()} == set(STRATEGIES)


@pytest.mark.slow_but
@pytest.mark.parametrize(("version", "threads"), [(7, 1), (None, 2)], ids=["asked for", "announced"])
def test_a_good_version_arrives_whole_and_the_report_says_what_it_was(arrival, version, threads):
    arrival.publish(7, A)
    rank = Rank(arrival)
    report = rank.load(version, threads=threads)
    assert rank.holds(A)
    assert rank.tainted == 1
    assert (report.strategy, report.version) == (arrival.strategy, "7")
    assert (report.bytes, report.tensors, report.verified) == (BYTES, len(A), len(A))
    assert report.digest == digest_of_state(A)
    assert report.manifest_scope is ManifestScope.GROUP
    assert report.files
    assert report.ignored == ()
    assert report.adopted_bytes == 0


@pytest.mark.slow_but
def test_versions_a_b_a_leave_the_bytes_of_a(arrival):
    rank = Rank(arrival)
    reports = [rank.require_next(version, state) for version, state in ((1, A), (2, B), (3, A))]
    assert [report.digest for report in reports] == [*map(digest_of_state, (A, B, A))]
    assert len({report.manifest_digest for report in reports}) == len(reports)


TRANSPOSED = frozenset({"embed.weight", "layer.0.weight", "large.weight", "second.weight", "nothing"})


@pytest.mark.slow_but
def test_a_target_with_exchanged_axes_gets_them_exchanged_and_reports_what_came(arrival):
    rank = Rank(arrival)
    rank.target = MemoryTarget((spec for spec, _ in A.values()), transposed=TRANSPOSED)
    for version, state in ((1, A), (2, B)):
        arrival.publish(version, state)
        report = rank.load(version, threads=version)
        assert report.digest == digest_of_state(state)
        assert report.adopted_bytes == 0
        assert rank.holds(state)
        for name in TRANSPOSED:
            spec, data = state[name]
            came = np.frombuffer(data, f"u{ITEM_BYTES[spec.dtype]}").reshape(spec.shape)
            assert bytes(rank.target.writable(name)) == came.T.tobytes(), name


@pytest.mark.slow_but
def test_a_version_beside_one_that_serves_gets_its_axes_exchanged_too(arrival):
    rank = Rank(arrival)
    rank.target = MemoryTarget((spec for spec, _ in A.values()), transposed=TRANSPOSED)
    arrival.publish(1, A)
    rank.load(1)
    arrival.publish(2, B)
    served, rank.target = rank.target, rank.target.stage()
    assert rank.load(2, threads=2).digest == digest_of_state(B)
    assert rank.holds(B)
    rank.target.make_ready(frozenset())
    rank.target.flip()
    rank.target = served
    assert rank.holds(B)


def tied_rank(arrival: Arrival, **tied: str) -> Rank:
    rank = Rank(arrival, serving=B)
    kept = [spec for spec, _ in A.values() if spec.name not in tied]
    rank.target = MemoryTarget(kept, tied=tied)
    for spec in kept:
        rank.target.writable(spec.name)[:] = B[spec.name][1]
    return rank


def with_alias(state: State, names: str) -> State:
    spec, data = state["large.weight"]
    alias = {"tied": (TensorSpec("tied", spec.dtype, spec.shape), data)}
    if names == "alias first":
        return {**alias, **state}
    return {**{name: row for name, row in state.items() if names == "both" or name != spec.name}, **alias}


@pytest.mark.slow_but
@pytest.mark.parametrize("names", ["both", "alias first", "alias only"])
def test_a_tied_tensor_is_applied_once_under_whichever_of_its_names_it_comes(arrival, names):
    rank = tied_rank(arrival, tied="large.weight")
    for version, state in ((1, A), (2, B)):
        arrival.publish(version, with_alias(state, names))
        report = rank.load(version)
        assert rank.holds(state)
        assert report.digest == digest_of_state(state)
        assert (report.bytes, report.tensors, report.verified) == (BYTES, len(A), len(A))
    assert rank.tainted == 2


@pytest.mark.slow_but
def test_other_bytes_under_another_name_of_a_tied_tensor_are_refused(arrival):
    spec, data = A["large.weight"]
    other = bytes([data[0] ^ 1, *data[1:]])
    arrival.publish(1, {**A, "tied": (TensorSpec("tied", spec.dtype, spec.shape), other)})
    rank = tied_rank(arrival, tied="large.weight")
    with raising("tied-tensors-differ", match=r"'large\.weight'") as caught:
        rank.load(1)
    assert caught.value.touched == bool(rank.tainted)
    assert rank.tainted or rank.holds(B)
    arrival.publish(2, with_alias(A, "both"))
    rank.load(2)
    assert rank.holds(A)


@pytest.mark.slow_but("ipc_snapshot, resliced")
def test_a_name_that_the_target_does_not_declare_tied_is_unknown(arrival):
    arrival.publish(1, {**A, "tied": (TensorSpec("tied", "F32", (8, 16)), A["head.weight"][1])})
    rank = Rank(arrival, serving=B)
    with raising(errors.not_covered) as caught:
        rank.load(1)
    assert caught.value.unknown == ("tied",)
    assert caught.value.touched == bool(rank.tainted)
    assert rank.tainted or rank.holds(B)


@pytest.mark.slow_but
@incident("sglang#31621")
def test_looking_at_a_version_moves_nothing_and_a_load_can_follow(arrival):
    arrival.publish(5, A)
    rank = Rank(arrival, serving=B)
    preview = inspect(arrival.source(), None, name=arrival.strategy, target=rank.target)
    assert preview.version == "5"
    assert (preview.bytes, preview.tensors) == ((BYTES, len(A)) if arrival.declared else (None, None))
    assert rank.holds(B)
    report = rank.load(5)
    assert report.files == preview.files
    assert preview.manifest_digest == (report.manifest_digest if arrival.declared else None)
    if arrival.declared:
        with raising(errors.not_covered):
            inspect(arrival.source(), None, name=arrival.strategy, target=MemoryTarget([]))
    assert rank.holds(A)


def wrongs() -> list[object]:
    return [pytest.param(wrong, id=wrong.value) for wrong in Wrong]


@pytest.mark.slow_but("snapshot-*", "*-a tensor of the model is missing")
@incident("FastDeploy#6052", "tokenspeed#1373")
@pytest.mark.processes
@pytest.mark.parametrize("wrong", wrongs())
def test_what_is_wrong_is_a_typed_error_and_a_good_version_loads_afterwards(arrival, wrong):
    if wrong in arrival.impossible:
        assert arrival.impossible[wrong], "say why it cannot happen"
        return
    rank = Rank(arrival, serving=B)
    expected = arrival.publish_wrong(3, A, wrong)
    with pytest.raises(WsmError) as caught:
        rank.load(3, **expected.load_options())
    assert matches(caught.value, expected.error), repr(caught.value)
    for text in (*expected.mentions, arrival.place):
        assert text in str(caught.value)
    if expected.may_touch:
        assert rank.tainted == 1
        assert caught.value.touched
    else:
        assert rank.tainted == 0
        assert rank.holds(B)
        assert not getattr(caught.value, "touched", False)
    rank.require_next(4, A)


@pytest.mark.slow_but
def test_damaged_bytes_are_found_on_several_threads_too(arrival):
    rank = Rank(arrival, serving=B)
    expected = arrival.publish_wrong(3, A, Wrong.FLIPPED_BIT)
    with pytest.raises(WsmError) as caught:
        rank.load(3, threads=2)
    assert matches(caught.value, expected.error), repr(caught.value)
    rank.require_next(4, A, threads=2)


@pytest.mark.slow_but("delta-cancelled")
@pytest.mark.parametrize("failing", ["damaged bytes", "cancelled"])
def test_a_failed_load_keeps_no_memory_of_the_model_until_a_collector_comes(arrival, failing):
    target = WatchedTarget(spec for spec, _ in A.values())
    options: dict[str, object] = {"cancelled": stop_at(6)} if failing == "cancelled" else {}
    if failing == "damaged bytes":
        arrival.publish_wrong(3, A, Wrong.FLIPPED_BIT)
    else:
        arrival.publish(3, A)
    with no_collector():
        try:
            load(arrival.source(), target, name=arrival.strategy, version=3, threads=2, **options)
        except WsmError:
            failed = True
        assert failed
        assert target.kept_by_others() == 0


def stop_at(count: int) -> Callable[[], bool]:
    asked = iter(range(count))
    return lambda: next(asked, None) is None


@pytest.mark.slow_but
@incident("NeMo-RL#3274")
@pytest.mark.parametrize(("count", "threads"), [(0, 1), (1, 2), (4, 1), (4, 2)])
def test_a_load_can_be_cancelled_between_chunks_and_repeated(arrival, count, threads):
    arrival.publish(1, A)
    rank = Rank(arrival, serving=B)
    with raising(errors.LoadCancelledError) as caught:
        rank.load(1, cancelled=stop_at(count), threads=threads)
    assert caught.value.touched == bool(rank.tainted)
    if not rank.tainted:
        assert rank.holds(B)
    rank.require_next(2, A)


@pytest.mark.slow_but
@pytest.mark.parametrize("threads", [1, 2])
def test_progress_grows_to_the_bytes_of_all_tensors(arrival, threads):
    arrival.publish(1, A)
    seen, collecting = [], []
    before = gc.get_threshold()

    def progress(done, total):
        seen.append((done, total))
        collecting.append(not done or gc.get_threshold() == before)

    Rank(arrival).load(1, progress=progress, threads=threads)
    assert all(collecting)  # the process may serve meanwhile, and its collector is as rare as it was
    assert seen == sorted(seen)
    assert seen[-1] == (BYTES, BYTES)
    if threads == 1:  # of several threads' chunks, some are reported together
        assert len(seen) > len(A)  # the large tensor is reported in between, too


@pytest.mark.slow_but
def test_a_target_that_fails_ends_the_load_and_the_next_one_works(arrival):
    class Broken(MemoryTarget):
        def writable(self, name):
            if name == "head.weight":
                raise OSError("no memory today")
            return super().writable(name)

    arrival.publish(1, A)
    rank = Rank(arrival)
    broken, rank.target = Broken(spec for spec, _ in A.values()), rank.target
    with pytest.raises(OSError, match="no memory today"):
        load(arrival.source(), broken, name=arrival.strategy, version=1)
    rank.require_next(2, A)


@pytest.mark.slow_but
def test_a_part_of_the_tensors_arrives_where_that_is_asked_for(arrival):
    part = {name: B[name] for name in B if name != "layer.0.bias"}
    arrival.publish(1, part)
    rank = Rank(arrival, serving=A)
    report = rank.load(1, partial=True)
    assert rank.holds({**A, **part})
    assert (report.partial, report.missing, report.tensors) == (True, ("layer.0.bias",), len(part))
    assert report.digest == digest_of_state({**A, **part})


@pytest.mark.slow_but
def test_what_is_allowed_by_name_is_left_out(arrival):
    state = {**A, "stranger": (A["steps"][0].__class__("stranger", "U8", (3,)), b"abc")}
    arrival.publish(1, state)
    rank = Rank(arrival)
    report = rank.load(1, allowed_unknown=["stranger"])
    assert rank.holds(A)
    assert (report.tensors, report.bytes) == (len(A), BYTES)


@pytest.mark.slow_but
def test_many_failures_leave_no_descriptor_open(arrival):
    rank = Rank(arrival)
    for version in (1, 2):  # a publisher may alternate between two places
        arrival.publish(version, A)
        rank.load(version)
    before = open_before()
    for version in range(3, 6):
        arrival.publish(version, A)
        with contextlib.suppress(errors.LoadCancelledError):
            rank.load(version, cancelled=stop_at(3))
    # A trainer that listens sees that the last rank has gone when it listens again.
    late = time.monotonic() + 60
    while open_descriptors() > before + 1:
        assert time.monotonic() < late
        time.sleep(0.01)
