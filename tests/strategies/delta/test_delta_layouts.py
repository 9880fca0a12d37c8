"""Deltas that were made for another number of ranks than there are."""

from __future__ import annotations

import numpy as np
import pytest
from delta_directory import A, B, C, State, holding, holds, released

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
from wsm.strategies.delta.source import DeltaBaseError
from wsm.strategies.snapshot.placement import split


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
