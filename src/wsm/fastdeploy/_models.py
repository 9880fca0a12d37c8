"""FastDeploy's models: as weights, as what loads a checkpoint itself, and what is made of them behind that.

FastDeploy's loader gives dynamic models their final layout before there are any weights
(``process_final_after_loading``): transposed parameters are made anew, empty. Then a checkpoint goes right
into them, by what loaders have hung on the ones before. Builds that leave it to the update get it there.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from wsm.actions.backends.model_loading import carrying_over
from wsm.actions.surfaces import WeightSurface
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.tensor import tied_names
from wsm.strategies.training_names import TrainingNames

#: FastDeploy's module with both functions.
UTILITIES = "fastdeploy.model_executor.utils"

#: What a replaced function or method of FastDeploy carries.
WATCHED = "__wsm_watched__"

#: Models that FastDeploy's loader has processed; a key is gone with its model.
_PROCESSED: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def surfaces_of_models(models: Sequence[Any]) -> WeightSurface:
    """Return the weights of FastDeploy's models; a model that is a weight surface already stays what it is.

    The first is the main one; names of the others are those that they have themselves, as in FastDeploy.
    """
    if len(models) == 1 and isinstance(models[0], WeightSurface):
        return models[0]
    import paddle  # noqa: PLC0415 - only a worker with paddle's models has any

    from wsm.actions.backends.paddle_weights import DeviceWeights, PaddleWeights  # noqa: PLC0415 - as above

    layers: Mapping[str, Any] = {"": SimpleNamespace(state_dict=lambda: state_of(models))}
    place = paddle.framework._current_expected_place()
    if place.is_cpu_place():
        return PaddleWeights(layers)
    return DeviceWeights(layers, place)


def checkpoint_models(models: Sequence[Any], fd_config: Any) -> Sequence[CheckpointModel]:
    """Return FastDeploy's models as what takes a checkpoint; none if one of them has no ``load_weights``."""
    if not all(callable(getattr(model, "load_weights", None)) for model in models):
        return ()
    from wsm.actions.backends.model_loading import loading_models  # noqa: PLC0415 - as above

    return loading_models(models, fd_config)


def training_names_of(models: Sequence[Any], weights: WeightSurface) -> TrainingNames:
    """Return what FastDeploy's models say of their trainer's names; those that say nothing have the same.

    They may name tensors that this configuration of theirs does not have; `weights` says which they have.

    Raises
    ------
    BadInputError (``bad-training-names``)
        If they do not say which tensor is which.
    """
    there = weights.specs().keys() | tied_names(weights).keys()
    said: dict[str, Any] = {}
    for model in models:
        ask = getattr(model, "get_name_mappings_to_training", None)
        said.update({own: name for own, name in (ask() if callable(ask) else {}).items() if own in there})
    return TrainingNames.of_model(said)


def state_of(models: Iterable[Any]) -> dict[str, Any]:
    """Return every tensor of the models by name; of two with one name the later counts, as in FastDeploy."""
    with_state = (model for model in models if hasattr(model, "state_dict"))
    return {name: tensor for model in with_state for name, tensor in model.state_dict().items()}


def keeping_attributes(transpose: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return ``process_weight_transpose`` so that dynamic models lose no loader's attributes."""
    carrying = carrying_over(transpose)

    @functools.wraps(transpose)
    def turned(layer: Any, weight_name: str) -> Any:
        dynamic = getattr(layer.fd_config.load_config, "dynamic_load_weight", False)
        return (carrying if dynamic else transpose)(layer, weight_name)

    setattr(turned, WATCHED, True)
    return turned


def remembering(process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``process_final_after_loading`` so that it is known which models it was called for."""

    @functools.wraps(process)
    def processed(model: Any, fd_config: Any) -> Any:
        result = process(model, fd_config)
        _PROCESSED[model] = True
        return result

    setattr(processed, WATCHED, True)
    return processed


def processing_left(models: Sequence[Any], fd_config: Any) -> Callable[[], None] | None:
    """Return what is to be done behind each load through the models; None: FastDeploy's loader has done it.

    An MTP model is left as it is, as FastDeploy's loader does.
    """
    process = getattr(sys.modules.get(UTILITIES), "process_final_after_loading", None)
    watched = hasattr(process, WATCHED)  # without install() it is not known what was done
    left = [model for model in models if model not in _PROCESSED and not _drafts(model)]
    if process is None or not watched or not left or not checkpoint_models(models, fd_config):
        return None

    def process_loaded() -> None:
        import paddle  # noqa: PLC0415 - as above

        with paddle.no_grad():
            for model in left:
                process(model, fd_config)

    return process_loaded


def _drafts(model: Any) -> bool:
    own = getattr(getattr(model, "fd_config", None), "speculative_config", None)
    return getattr(own, "model_type", None) == "mtp"
