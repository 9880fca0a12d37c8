"""What model loaders hang on a parameter, carried over to one that is made anew beside it.

FastDeploy turns some parameters round by making another of the exchanged shape, which has lost how it is
loaded: the next stream would be cut along the wrong axis (FastDeploy#7951). Knows attributes, not weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

#: Of paddle itself; a new parameter has its own.
_PADDLES = frozenset(
    {
        "optimize_attr",
        "regularizer",
        "do_model_average",
        "need_clip",
        "is_distributed",
        "_init_func",
        "_init_op_creator",
    }
)
#: What a loader has filled so far, of the shape before.
_OF_ONE_LOAD = frozenset({"tensor_track"})


def carry_over(before: Any, after: Any) -> None:
    """Give `after` what loaders have hung on `before` and it lacks, turned round if its shape is.

    Where the last two axes are exchanged, the axis that is split and ``output_dim`` are the other one, and a
    checkpoint that had to be transposed need not be any more, and the other way round.

    Parameters
    ----------
    before, after : paddle tensor
        A parameter and the one that stands in its place.
    """
    old, new = list(before.shape), list(after.shape)
    turned = len(old) > 1 and old != new == [*old[:-2], old[-1], old[-2]]
    _carry(vars(before), after, turned=turned)


def carrying_over(transpose: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return FastDeploy's ``process_weight_transpose(layer, name)`` so that it loses no attributes."""

    @functools.wraps(transpose)
    def transposed(layer: Any, name: str) -> Any:
        before = getattr(layer, name)
        attributes = dict(vars(before))
        answer = transpose(layer, name)
        after = getattr(layer, name)
        if after is not before:
            _carry(attributes, after, turned=len(after.shape) > 1)
        return answer

    return transposed


def _carry(attributes: Mapping[str, Any], after: Any, *, turned: bool) -> None:
    own = vars(after)
    if attributes.get("is_distributed"):
        after.is_distributed = True
    left_out = {*_PADDLES, *_OF_ONE_LOAD, *own}
    lost = {key: value for key, value in attributes.items() if key not in left_out}
    for key, value in (_turned(lost, len(after.shape)) if turned else lost).items():
        setattr(after, key, value)


def _turned(attributes: dict[str, Any], axes: int) -> dict[str, Any]:
    turned = dict(attributes)
    if isinstance(turned.get("output_dim"), bool):
        turned["output_dim"] = not turned["output_dim"]
    split = turned.get("split_axis")
    if isinstance(split, int) and split % axes >= axes - 2:
        turned["split_axis"] = 2 * axes - 3 - split % axes
    if "weight_need_transpose" in turned:
        turned["weight_need_transpose"] = not turned["weight_need_transpose"]
    return turned
