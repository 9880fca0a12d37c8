"""FastDeploy's ``model.load_weights(iterator)``, fed with what strategies bring, and what its loaders need.

The model gets names and paddle tensors that lie in the verified bytes themselves. FastDeploy turns some
parameters round by making another of the exchanged shape, which has lost how it is loaded: the next stream
would be cut along the wrong axis (FastDeploy#7951). So what loaders hang on a parameter is carried over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from wsm.actions.backends import required_call
from wsm.actions.backends.paddle_bytes import carrier_name, tensor_over
from wsm.strategies.checkpoint_models import AuxiliaryNames
from wsm.strategies.dtype_names import PADDLE_DTYPES
from wsm.strategies.tensor import TensorSpec

_PADDLES_NAME = {safetensors: paddle for paddle, safetensors in PADDLE_DTYPES.items()}


class LoadingModel:
    """One model of FastDeploy; `names` says of an auxiliary one which names are its own.

    Raises
    ------
    BadInputError (``call-missing``)
        If `model` has no ``load_weights``.
    """

    def __init__(self, model: Any, name: str, names: AuxiliaryNames | None = None) -> None:
        self.name = name
        self._load = required_call(model, "load_weights", needed_for="loading a checkpoint")
        self._names = names

    def match(self, name: str) -> bool:
        """Whether a tensor of this name is for the model, where it is an auxiliary one."""
        return self._names is not None and self._names.match(name)

    def load_checkpoint(self, tensors: Iterable[tuple[TensorSpec, memoryview]]) -> None:
        """Give the model every tensor, until the iterable ends. Blocks.

        A tensor shares the memory that its bytes lie in, so a model that keeps one keeps what comes next.
        """
        import paddle  # noqa: PLC0415 - a second of import time that only a loading worker pays

        with paddle.no_grad():
            self._load(_named(tensors))


def loading_models(models: Iterable[Any], fd_config: Any) -> list[LoadingModel]:
    """Return the main model and the auxiliary ones behind it, ready to be fed.

    Where an MTP model's layers begin it says itself (``mtp_start_layer_idx``, ``num_mtp_layers``), or
    ``fd_config.model_config`` does (``start_layer_index``, ``num_nextn_predict_layers``).
    """
    main, *auxiliaries = models
    model_config = getattr(fd_config, "model_config", None)
    found = [LoadingModel(main, "the main model")]
    for number, auxiliary in enumerate(auxiliaries):
        first = _number(auxiliary, "mtp_start_layer_idx", model_config, "start_layer_index")
        count = _number(auxiliary, "num_mtp_layers", model_config, "num_nextn_predict_layers")
        names = AuxiliaryNames() if first is None else AuxiliaryNames(first, 1 if count is None else count)
        found.append(LoadingModel(auxiliary, f"mtp{number or ''}", names))
    return found


def _number(model: Any, own: str, model_config: Any, other: str) -> int | None:
    found = getattr(model, own, None)
    found = getattr(model_config, other, None) if found is None else found
    return None if found is None else int(found)


def _named(tensors: Iterable[tuple[TensorSpec, memoryview]]) -> Iterator[tuple[str, Any]]:
    for spec, data in tensors:
        yield spec.name, _tensor(spec, data)


def _tensor(spec: TensorSpec, data: memoryview) -> Any:
    import paddle  # noqa: PLC0415 - as above

    dtype = _PADDLES_NAME[spec.dtype]
    if not spec.nbytes:
        return paddle.empty(list(spec.shape), dtype=dtype)
    array = np.frombuffer(data, np.dtype(carrier_name(dtype))).reshape(spec.shape)
    return tensor_over(array, dtype)


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
    """Give the parameter `after` what loaders have hung on `before` and it lacks; turned round as it is.

    Where the last two axes are exchanged, the axis that is split and ``output_dim`` are the other one, and a
    checkpoint that had to be transposed need not be any more, and the other way round.
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
