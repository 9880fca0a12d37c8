"""A KV cache that outlives its weights: whose blocks it may still serve, and whose never."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lone_rank import SPECS, LoneRank

from wsm import KVPolicy, Tag
from wsm.actions.options import PlanOptions
from wsm.controller.errors import RankFailedError
from wsm.testing import InMemoryRunner

W = frozenset({Tag.WEIGHTS})


@pytest.fixture
def rank(make_lone: Callable[..., LoneRank]) -> LoneRank:

    runner = InMemoryRunner(SPECS)
    options = PlanOptions.from_runner(runner, kv_policies=frozenset({KVPolicy.DROP, KVPolicy.KEEP}))
    lone = make_lone(runner=runner, plan_options=options)
    lone.update(1)
    return lone


def forgotten(rank: LoneRank, clear: KVPolicy, version: int, update: KVPolicy) -> tuple[int, int]:
    """How often the blocks were forgotten by the clear, and by the update after it."""
    cache = rank.runner.kv_cache
    rank.clear(tags=W, kv_policy=clear)
    by_clear, cache.forgotten = cache.forgotten, 0
    rank.update(version, kv_policy=update)
    assert rank.controller.status().serving
    return by_clear, cache.forgotten


DROP, KEEP = KVPolicy.DROP, KVPolicy.KEEP


@pytest.mark.parametrize(
    ("clear", "version", "update", "expected"),
    [
        pytest.param(KEEP, 1, DROP, (0, 0), id="kept, and the very same weights are back"),
        pytest.param(KEEP, 2, DROP, (0, 1), id="kept, and other weights came"),
        pytest.param(KEEP, 2, KEEP, (0, 0), id="kept for other weights, because both commands say so"),
        pytest.param(DROP, 1, DROP, (1, 1), id="dropped with the weights"),
    ],
)
def test_blocks_stay_for_the_weights_that_computed_them_or_where_the_commands_say_so(
    rank: LoneRank, clear: KVPolicy, version: int, update: KVPolicy, expected: tuple[int, int]
) -> None:
    assert forgotten(rank, clear, version, update) == expected


@pytest.mark.parametrize(
    ("clear", "version", "expected"),
    [
        pytest.param(KEEP, 1, (0, 0), id="kept, and the very same weights are back"),
        pytest.param(KEEP, 2, (0, 1), id="kept, and other weights came"),
        pytest.param(DROP, 1, (1, 1), id="dropped with the weights"),
    ],
)
def test_so_they_do_where_the_weights_went_at_the_second_try(
    rank: LoneRank, clear: KVPolicy, version: int, expected: tuple[int, int]
) -> None:
    weights, cache = rank.runner.weights, rank.runner.kv_cache
    release = weights.release

    def fails_once() -> int:
        weights.release = release
        raise OSError("bad luck")

    weights.release = fails_once
    with pytest.raises(RankFailedError, match="bad luck"):
        rank.clear(tags=W, kv_policy=clear)
    assert cache.allocated_bytes()
    by_clear, cache.forgotten = cache.forgotten, 0
    rank.update(version)
    assert (by_clear, cache.forgotten) == expected


def test_blocks_that_were_kept_once_are_not_kept_for_ever(rank: LoneRank) -> None:
    assert forgotten(rank, KEEP, 2, DROP) == (0, 1)
    rank.update(1)  # in place, from serving: the policy counts, whatever was kept before
    assert rank.runner.kv_cache.forgotten == 2


def test_a_forced_reload_of_the_same_version_does_as_its_policy_says(rank: LoneRank) -> None:
    before = rank.runner.kv_cache.forgotten
    rank.update(1, force=True)
    assert rank.runner.kv_cache.forgotten == before + 1
