"""What a trainer calls the tensors of a model that has other names for them.

Names are exchanged in two places, whatever the strategy: in what a trainer hands to a publisher, and in what
a source offers, before it is compared with the model. Tensors that have the model's names already stay as
they are, so it does no harm where both happen. A configuration or a command names a file that has the map.
Knows no models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta

from wsm.errors import UnfitError
from wsm.strategies import errors
from wsm.strategies.offer import Offer, OfferedTensor
from wsm.strategies.promise import read_json
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import TrainerTensors
from wsm.typed import typed

#: Several names of a trainer's, of one tensor.
_Several: TypeAlias = Annotated[list[str], Meta(min_length=1)]
_Said = TypeVar("_Said")


@typed
class TrainingNames:
    """A map from training names to the model's own, the names of inference.

    Parameters
    ----------
    names : mapping of str to str
        By training name the name of inference; names that are not in it are the same on both sides.
    strip : str
        A prefix that training names have and those of inference do not. Names without it stay as they are.

    Raises
    ------
    BadInputError (``bad-training-names``)
        If two training names are mapped to one name, or a name is on both sides: then it could not be told
        whether a tensor of that name was renamed already.
    """

    def __init__(self, names: Mapping[str, str], *, strip: str = "") -> None:
        self._strip = strip
        self._names = {training: own for training, own in names.items() if training != own}
        first: dict[str, str] = {}
        for training, own in names.items():
            if own in first:
                problem = f"both {first[own]!r} and {training!r} are mapped to it"
                raise errors.bad_training_names(tensor=own, problem=problem)
            first[own] = training
            if training != own and own in self._names:
                problem = f"it is a training name, too, mapped to {self._names[own]!r}"
                raise errors.bad_training_names(tensor=own, problem=problem)

    @classmethod
    def of_model(cls, trained_as: Mapping[str, Any]) -> TrainingNames:
        """Return the map of what FastDeploy's models say (``get_name_mappings_to_training``).

        Parameters
        ----------
        trained_as : mapping of str to str or list of str
            By name of inference the training name. Several of them are merged by the trainer: no name can do
            that, and such a tensor comes under the model's own name.

        Raises
        ------
        BadInputError (``bad-training-names``)
            As the constructor, also if one training name stands for two tensors.
        """
        names: dict[str, str] = {}
        for own, said in trained_as.items():
            training = said if isinstance(said, str) else said[0] if len(said) == 1 else own
            if training in names:
                problem = f"it is mapped to both {names[training]!r} and {own!r}"
                raise errors.bad_training_names(tensor=training, problem=problem)
            names[training] = own
        return cls(names)

    def of_inference(self, name: str) -> str:
        """Return the model's name of what a trainer calls `name`."""
        if name in self._names:
            return self._names[name]
        stripped = name.removeprefix(self._strip)
        return self._names.get(stripped, stripped)

    def tensors(self, tensors: TrainerTensors) -> TrainerTensors:
        """Return a state dict under the model's names, as every publisher takes it. Nothing is copied.

        Raises
        ------
        BadInputError (``mapped-name-exists``)
            If a tensor has the name already that another is mapped to.
        """
        self._require_free(list(tensors))
        return _Renamed(tensors, {self.of_inference(name): name for name in tensors})

    def offer(self, offer: Offer) -> Offer:
        """Return an offer under the model's names. Reads nothing of an undeclared one.

        Raises
        ------
        BadInputError (``mapped-name-exists``)
            If it declares or promises a tensor that has the name already that another is mapped to.
        """
        if not self._names and not self._strip:
            return offer
        promised = offer.promised
        if promised is not None:
            self._require_free([spec.name for spec in promised])
            promised = tuple(self._own(spec) for spec in promised)
        if not offer.declared:
            return replace(offer, tensors=self._one_by_one(offer.tensors), promised=promised)
        tensors = tuple(offer.tensors)
        self._require_free([tensor.spec.name for tensor in tensors])
        return replace(offer, tensors=tuple(self._one_by_one(tensors)), promised=promised)

    def _one_by_one(self, tensors: Iterable[OfferedTensor]) -> Iterator[OfferedTensor]:
        for tensor in tensors:
            own = self._own(tensor.spec)
            yield tensor if own.name == tensor.spec.name else replace(tensor, spec=own)

    def _own(self, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(self.of_inference(spec.name), spec.dtype, spec.shape)

    def _require_free(self, names: Iterable[str]) -> None:
        there: dict[str, str] = {}
        for name in names:
            other = there.setdefault(self.of_inference(name), name)
            if other != name:
                own = self.of_inference(name)
                tensor = other if name == own else name
                raise UnfitError(
                    f"tensor {tensor!r} is called {own!r} in the model, and a tensor {own!r} comes, too; "
                    "nothing was touched: leave one of them out, or correct the map of training names",
                    code="mapped-name-exists",
                    tensor=tensor,
                    name=own,
                )


def stripping(names: TrainingNames | None, strip: str) -> TrainingNames | None:
    """Return names that leave a prefix out besides; those that are given where it is empty."""
    return TrainingNames(names._names if names else {}, strip=strip) if strip else names


class _Renamed(Mapping[str, Any]):
    """A state dict under other names; each tensor is asked for when a publisher asks for it."""

    def __init__(self, tensors: TrainerTensors, trained_as: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._trained_as = trained_as

    def __getitem__(self, name: str) -> Any:
        training = self._trained_as[name]
        value = self._tensors[training]
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], TensorSpec):
            spec, buffer = value
            return (TensorSpec(name, spec.dtype, spec.shape) if spec.name == training else spec), buffer
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._trained_as)

    def __len__(self) -> int:
        return len(self._trained_as)


def names_from_files(names: Path | str | None, names_to_training: Path | str | None) -> TrainingNames | None:
    """Read the map of whichever of two files is named; None if neither is.

    Parameters
    ----------
    names : path or None
        JSON: the model's name by the trainer's.
    names_to_training : path or None
        JSON, the other way round, as FastDeploy's ``get_name_mappings_to_training`` says it: by the model's
        name the trainer's, or a list of those that the trainer merges.

    Raises
    ------
    BadInputError (``bad-names``)
        If both are named, or the file cannot be read or holds something else.
    BadInputError (``bad-training-names``)
        If it does not say which tensor is which.
    """
    if names and names_to_training:
        raise errors.bad_names(file=str(names), problem=f"{names_to_training} is to say it, too")
    if names:
        return TrainingNames(_said(names, dict[str, str]))
    if names_to_training:
        return TrainingNames.of_model(_said(names_to_training, dict[str, str | _Several]))
    return None


def _said(file: Path | str, kind: type[dict[str, _Said]]) -> dict[str, _Said]:
    try:
        return read_json(kind, Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise errors.bad_names(file=str(file), problem=str(error)) from error
