"""FastDeploy's ``model.load_weights(iterator)``, fed with what strategies bring.

The model gets names and paddle tensors that lie in the verified bytes themselves, and writes what it makes of
them into its parameters. Which tensors are an MTP model's is read off the model. Knows no stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wsm.actions.backends.paddle_bytes import carrier_name, tensor_over
from wsm.actions.backends.required_call import required_call
from wsm.strategies.checkpoint_models import AuxiliaryNames
from wsm.strategies.paddle_dtypes import PADDLE_DTYPES
from wsm.strategies.tensor import TensorSpec

_PADDLES_NAME = {safetensors: paddle for paddle, safetensors in PADDLE_DTYPES.items()}


class LoadingModel:
    """One model of FastDeploy.

    Parameters
    ----------
    model : object
        Has ``load_weights``, which takes an iterator of names and tensors.
    name : str
        What messages call it.
    names : AuxiliaryNames or None
        Of an auxiliary model: which names are its own.

    Raises
    ------
    BadInputError (``call-missing``)
        If it has no such call.
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
