from __future__ import annotations

import numpy as np
import pytest

from examples.rollout import errors
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import (
    ShardSplit,
    full_specs,
    initial_state,
    local_experts,
    parameter_table,
    shard,
    shard_specs,
)
from tests.raising import raising

SHAPES = [
    ModelShape(),
    ModelShape(activation="swiglu", draft_layers=1),
    ModelShape(experts=4, experts_per_token=1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=["dense", "gated-with-draft", "experts"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_put_together_give_the_full_weights(shape, ranks):
    full = initial_state(shape, seed=3)
    shards = [shard(full, shape, rank, ranks) for rank in range(ranks)]
    assert {name for local in shards for name in local} == full.keys()
    for name, array in full.items():
        parts, split = [local[name] for local in shards if name in local], parameter_table(shape)[name].split
        axis = {ShardSplit.COLUMNS: -1, ShardSplit.ROWS: 0}.get(split)
        again = parts[0] if axis is None else np.concatenate(parts, axis=axis)
        np.testing.assert_array_equal(again, array)


def test_every_expert_lives_on_exactly_one_rank():
    shape = ModelShape(experts=8)
    owners = [expert for rank in range(4) for expert in local_experts(shape, rank, 4)]
    assert owners == list(range(8))
    held = [name for rank in range(4) for name in shard_specs(shape, rank, 4) if ".experts." in name]
    assert sorted(held) == sorted(name for name in full_specs(shape) if ".experts." in name)


def test_initial_weights_depend_on_nothing_but_the_seed():
    one, same, other = (initial_state(ModelShape(), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["head.weight"], other["head.weight"])


def test_weights_of_another_model_are_refused_by_name():
    full = initial_state(ModelShape(), seed=0)
    with raising(errors.bad_shard, match=r"lacks 1 parameters, such as head\.weight") as caught:
        shard({name: array for name, array in full.items() if name != "head.weight"}, ModelShape(), 0, 2)
    assert caught.value.missing == ["head.weight"]
    with raising(errors.bad_shard, match=r"unknown ones, such as extra"):
        shard({**full, "extra": full["head.weight"]}, ModelShape(), 0, 2)
    with raising(errors.bad_shard, match=r"head\.weight has extents \(16, 64\)"):
        shard({**full, "head.weight": full["head.weight"].T}, ModelShape(), 0, 2)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"heads": 3}, "heads"),
        ({"activation": "relu"}, "activation"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_field(fields, named):
    with raising(errors.bad_model_shape) as caught:
        ModelShape(**fields)
    assert caught.value.field == named


@pytest.mark.parametrize("fields", [{"heads": 2}, {"experts": 6}])
def test_a_model_that_cannot_be_split_evenly_is_refused(fields):
    with raising(errors.bad_model_shape, match="4 ranks"):
        shard_specs(ModelShape(**fields), 0, 4)
