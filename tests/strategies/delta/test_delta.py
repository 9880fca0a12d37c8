"""Deltas: what a rank holds plus what has changed is the version; on anything else they are refused."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from delta_directory import (
    A,
    B,
    C,
    Directory,
    State,
    changed,
    digest_of_state,
    holding,
    holds,
    make_state,
    released,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import (
    DeltaSource,
    MemoryTarget,
    TensorSpec,
    delta_between,
    errors,
    inspect,
    load,
    publish_snapshot,
)
from wsm.strategies.delta import source as wrong
from wsm.strategies.delta.source import DeltaBaseError
from wsm.strategies.delta.strategy import OpenDelta
from wsm.strategies.snapshot.placement import split

# -- what changes, and only that ----------------------------------------------------------------------


def test_the_report_counts_what_became_of_the_tensors(directory):
    directory.whole(1, A)
    foreign = make_state(9)
    new = {**A, "layer.weight": B["layer.weight"], "layer.quantized": foreign["layer.quantized"]}
    report = directory.delta(2, 1, new)
    assert (report.unchanged, report.changed, report.full) == (len(A) - 2, 1, 1)
    assert report.bytes == (directory.path / "deltas/2/delta.tp0.blocks").stat().st_size
    assert report.ratio == report.bytes / sum(spec.nbytes for spec, _ in A.values())


def test_where_most_has_changed_the_whole_version_is_published_and_said_to_be(directory):
    directory.whole(1, A)
    report = directory.delta(2, 1, make_state(9))
    assert report.whole == "size"
    assert not (directory.path / "deltas/2").exists()
    target = holding(A)
    loaded = directory.load(None, target)
    assert holds(target, make_state(9))
    assert loaded.manifest_digest == report.manifest_digest


def test_where_too_many_deltas_would_follow_each_other_the_whole_version_is_published(directory):
    directory.whole(1, A)
    states = [A]
    reports = []
    for version in range(2, 6):
        states.append(changed(states[-1], 0.01, version))
        reports.append(directory.delta(version, version - 1, states[-1], max_chain=2))
    assert [report.whole for report in reports] == [None, None, "chain", None]
    assert directory.brings(5, states[-1], to=released(A), max_chain=2)


# -- from what a rank holds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "gone", "whole", "files"),
    [
        pytest.param(holding(A), True, False, ["2", "3"], id="missed some versions"),
        pytest.param(released(A), False, False, ["1", "2", "3"], id="released"),
        pytest.param(holding(make_state(7)), False, False, ["1", "2", "3"], id="another version"),
        pytest.param(released(A), False, True, ["3"], id="whole files beside the delta"),
    ],
)
def test_the_deltas_since_what_a_rank_holds_or_whole_files_are_loaded(deltas, begin, gone, whole, files):
    deltas.delta(3, 2, C)
    if gone:
        shutil.rmtree(deltas.path / "versions/1")
    if whole:
        deltas.whole(3, C)
    loaded = deltas.load(3, begin)
    assert holds(begin, C)
    assert loaded.digest == digest_of_state(C)
    assert [Path(file).parent.name for file in loaded.files] == files


def test_ranks_that_came_by_different_ways_report_one_manifest(directory):
    directory.whole(1, A)
    report = directory.delta(2, 1, B)
    ways = [holding(A), holding(B), released(A)]
    directory.whole(2, B)
    ways.append(holding(make_state(7)))
    assert {directory.load(2, target).manifest_digest for target in ways} == {report.manifest_digest}


@incident("NeMo-RL#3274")
def test_another_base_is_refused_with_both_named_and_weights_untouched(directory):
    directory.whole(1, A)
    directory.whole(5, C)
    directory.delta(2, 1, B)
    target = holding(C)
    with raising(wrong.DeltaBaseError) as caught:
        directory.load(2, target, fallback="refuse")
    error = caught.value
    assert (error.version, error.base_version, error.found_version) == ("2", "1", "5")
    assert (error.base_digest, error.found_digest) == (digest_of_state(A), digest_of_state(C))
    assert set(error.tensors) == {name for name in A if A[name][1] != C[name][1]}
    for text in ("version 1", "version 5", digest_of_state(A), digest_of_state(C), "load a full version"):
        assert text in str(error)
    assert holds(target, C)


def test_released_weights_are_refused_where_no_whole_files_are(deltas):
    shutil.rmtree(deltas.path / "versions/1")
    for fallback in ("full", "refuse"):
        with raising(wrong.DeltaBaseError, match="holds no whole weights") as caught:
            deltas.load(2, released(A), fallback=fallback)
        assert caught.value.found_digest is None


def test_a_whole_version_that_was_published_anew_with_other_bytes_is_no_base(deltas):
    deltas.whole(1, C, replace=True)
    with raising(wrong.DeltaBaseError):
        deltas.load(2, released(A))


def test_a_chain_ends_where_a_delta_was_published_anew_with_other_bytes(deltas):
    deltas.delta(3, 2, C)
    deltas.delta(2, 1, changed(A, 0.02, 8), replace=True)
    target = holding(A)
    with raising(wrong.DeltaBaseError):
        deltas.load(3, target)
    assert holds(target, A)


def test_deltas_that_lead_in_a_circle_end_somewhere(deltas):
    deltas.delta(1, 2, A)
    shutil.rmtree(deltas.path / "versions/1")
    with raising(wrong.DeltaBaseError):
        deltas.load(1, released(A))


def test_a_chain_is_followed_no_further_than_allowed(deltas):
    deltas.delta(3, 2, C)
    with raising(wrong.DeltaBaseError):
        deltas.load(3, released(A), max_chain=1)


def test_looking_asks_for_no_base(deltas):
    shutil.rmtree(deltas.path / "versions/1")
    target = released(A)
    preview = inspect(deltas.source(), name="delta", target=target)
    assert (preview.version, preview.tensors) == ("2", len(A))
    assert not list(target.held())


# -- beside a version that serves ---------------------------------------------------------------------


class FakeDeviceTarget(MemoryTarget):
    """Bytes that are written on the host and moved, as a device's are; reading gives a copy."""

    def __init__(self, specs):
        super().__init__(specs)
        self.on_host: dict[str, bytearray] = {}
        self.most = 0

    def writable(self, name):
        self.on_host[name] = bytearray(b"\xa5" * self.specs()[name].nbytes)
        self.most = max(self.most, len(self.on_host))
        return memoryview(self.on_host[name])

    def written(self, name):
        super().writable(name)[:] = self.on_host.pop(name)

    def readable(self, name):
        return memoryview(bytes(super().readable(name)))


def test_a_target_that_is_written_elsewhere_gets_the_base_first(deltas):
    target = FakeDeviceTarget(spec for spec, _ in A.values())
    deltas.load(1, target)
    deltas.load(2, target, fallback="refuse")
    assert holds(target, B)
    assert target.most == 1


class Watched(MemoryTarget):
    """Remembers what was asked for to be written."""

    def __init__(self, specs):
        super().__init__(specs)
        self.written_to: list[str] = []

    def writable(self, name):
        self.written_to.append(name)
        return super().writable(name)


def test_what_has_not_changed_is_not_written(directory):
    directory.whole(1, A)
    new = {**A, "layer.weight": B["layer.weight"]}
    directory.delta(2, 1, new)
    target = Watched(spec for spec, _ in A.values())
    directory.load(1, target)
    target.written_to.clear()
    loaded = directory.load(2, target)
    assert target.written_to == ["layer.weight"]
    assert (loaded.tensors, loaded.verified) == (len(A), len(A))
    assert loaded.digest == digest_of_state(new)


def test_a_failed_load_holds_on_to_no_memory_of_the_target(deltas):
    target = holding(C)
    with raising(wrong.DeltaBaseError) as caught:
        deltas.load(2, target, fallback="refuse")
    memory = target._memory["layer.weight"]
    behind = memory.obj
    memory.release()
    behind.append(0)  # a view of it that is still held would forbid this
    assert caught.value.tensors


# -- what is damaged ----------------------------------------------------------------------------------


def test_blocks_that_change_between_the_look_and_the_load_leave_the_weights_marked(deltas, monkeypatch):
    file = deltas.path / "deltas/2/delta.tp0.blocks"
    good, verify = file.read_bytes(), OpenDelta.verify

    def verify_then_damage(self, observer):
        verify(self, observer)
        file.write_bytes(bytes(file.stat().st_size))

    monkeypatch.setattr(OpenDelta, "verify", verify_then_damage)
    with raising(wrong.bad_delta) as caught:
        deltas.load(2, holding(A))
    assert caught.value.touched
    assert "the load ended part way" in str(caught.value)
    file.write_bytes(good)
    with raising(wrong.bad_delta) as caught:
        deltas.delta(3, 2, C)
    assert "the load ended part way" not in str(caught.value)  # a publisher has no weights


def test_a_base_that_changes_under_the_load_is_found_by_the_result(deltas):

    class Moving(MemoryTarget):
        def writable(self, name):
            memory = super().writable(name)
            if name == "layer.weight" and memory:
                memory[-1] ^= 1
            return memory

    target = Moving(spec for spec, _ in A.values())
    for name, (spec, data) in A.items():
        if spec.nbytes:
            MemoryTarget.writable(target, name)[:] = data
    with raising(errors.DigestMismatchError) as caught:
        deltas.load(2, target)
    assert caught.value.touched


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    shapes=st.lists(
        st.tuples(
            st.sampled_from(["BF16", "F32", "I8", "I64", "BOOL"]),
            st.lists(st.integers(0, 40), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=4,
    ),
    parts=st.lists(st.sampled_from([0.0, 0.01, 0.2, 1.0]), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_any_states_survive_any_chain(tmp_path_factory, shapes, parts, seed):
    directory = Directory(tmp_path_factory.mktemp("any"))
    specs = [TensorSpec(f"t{index}", dtype, shape) for index, (dtype, shape) in enumerate(shapes)]
    generator = np.random.default_rng(seed)
    states = [{spec.name: (spec, generator.bytes(spec.nbytes)) for spec in specs}]
    directory.whole(0, states[0])
    stepwise = holding(states[0])
    for version, part in enumerate(parts, start=1):
        states.append(changed(states[-1], part, seed + version))
        directory.delta(version, version - 1, states[-1], crossover=2.0)
        directory.load(version, stepwise, fallback="refuse")
        assert holds(stepwise, states[-1])
    late, fresh = holding(states[0]), released(states[0])
    directory.load(len(parts), late, fallback="refuse")
    directory.load(len(parts), fresh)
    assert holds(late, states[-1])
    assert holds(fresh, states[-1])


def test_a_manifest_of_another_publication_is_refused(deltas):
    kept = (deltas.path / "deltas/2/delta.tp0.manifest.json").read_bytes()
    deltas.delta(2, 1, C, replace=True)
    (deltas.path / "deltas/2/delta.tp0.manifest.json").write_bytes(kept)
    with raising(errors.differs_from_manifest):
        deltas.load(2, holding(A))


def test_a_missing_part_is_named(deltas):
    for name in ("delta.tp0.blocks", "delta.tp0.manifest.json", "delta.manifest.json"):
        (deltas.path / "deltas/2" / name).unlink()
        with raising(errors.differs_from_manifest, match=name):
            deltas.load(2, holding(A))


def test_a_target_without_the_package_is_told_what_to_install(deltas, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.delitem(sys.modules, "wsm.strategies.delta._codec", raising=False)
    monkeypatch.delattr("wsm.strategies.delta._codec", raising=False)
    target = holding(A)
    with raising("zstandard-missing", match=r"wsm\[delta\]"):
        deltas.load(2, target)
    assert holds(target, A)


# -- made for another number of ranks than there are -----------------------------------------------------


def test_a_delta_for_another_number_of_ranks_is_refused_with_both_named_and_weights_untouched(directory):
    directory.whole(1, A, B)
    directory.delta(2, 1, B, C, crossover=2.0)
    target, tainted = holding(A), []
    for fallback, why in (("full", "no whole files of it are in"), ("refuse", "fallback: refuse")):
        source = directory.source(world_size=1, fallback=fallback)
        with raising("delta-layout", match=f"version 2 .* size 2, .* size 1: .*{why}") as caught:
            load(source, target, name="delta", version=2, taint=lambda: tainted.append(True))
        assert (caught.value.made_for, caught.value.ranks, caught.value.version) == (2, 1, "2")
    with raising("delta-layout"):
        inspect(directory.source(world_size=1), 2, name="delta")
    assert holds(target, A)
    assert not tainted
    directory.whole(3, C)
    assert directory.load(3, target, world_size=1).version == "3"
    assert holds(target, C)


def rows(state: np.ndarray, rank: int, ranks: int) -> State:
    part = np.split(state, ranks)[rank]
    return {"up": (TensorSpec("up", "F32", part.shape), part.tobytes())}


def test_whole_files_beside_the_delta_are_cut_for_the_ranks_that_there_are(directory):
    versions = {version: np.full((8, 4), version, np.float32) for version in (1, 2)}
    for version, whole in versions.items():
        publish_snapshot(
            directory.path,
            version,
            {rank: rows(whole, rank, 2) for rank in range(2)},
            placements={"up": split((8, 4), 0)},
            durable=False,
        )
    assert delta_between(directory.path, 1, 2, crossover=2.0, durable=False).whole is None
    digests = set()
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            state = rows(versions[2], rank, ranks)
            target = MemoryTarget(spec for spec, _ in state.values())
            source = DeltaSource(directory.path, rank, device_id=rank, world_size=ranks)
            if ranks != 2:
                assert inspect(source, 2, name="delta", target=target).tensors == 1
            digests.add(load(source, target, name="delta", version=2).manifest_digest)
            assert holds(target, state)
    assert len(digests) == 1  # of the version as it was published, whoever loads which part of it
    with raising("delta-layout", match="fallback: refuse"):
        directory.load(2, released(A), world_size=4, fallback="refuse")


def test_whole_files_that_nobody_can_cut_are_refused_by_what_they_lack(directory):
    for version, states in ((1, (A, B)), (2, (B, C))):
        directory.whole(version, *states)
    delta_between(directory.path, 1, 2, crossover=2.0, durable=False)
    with raising(errors.shard_identity, match=r"world size 2, .* world size 1"):
        directory.load(2, released(A), world_size=1)


def test_a_chain_ends_where_a_delta_was_published_anew_for_other_ranks(directory):
    directory.whole(1, A, A)
    directory.delta(2, 1, B, B, crossover=2.0)
    directory.delta(3, 2, C, C, crossover=2.0)
    directory.whole(9, A)
    directory.delta(2, 9, B, replace=True, crossover=2.0)
    target = holding(B)
    assert directory.load(3, target, world_size=2).version == "3"
    assert holds(target, C)
    with pytest.raises(DeltaBaseError):
        directory.load(3, released(A), world_size=2)
