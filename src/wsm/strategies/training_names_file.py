"""A map of training names that a configuration or a command line names by a file."""

from __future__ import annotations

from pathlib import Path

from wsm.strategies import documents, errors
from wsm.strategies.training_names import TrainingNames


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
        return TrainingNames({name: _name(names, own) for name, own in _said(names).items()})
    if names_to_training:
        said = _said(names_to_training)
        for trained in said.values():
            for each in trained if isinstance(trained, list) and trained else [trained]:
                _name(names_to_training, each)
        return TrainingNames.of_model(said)
    return None


def _said(file: Path | str) -> dict[str, object]:
    try:
        said = documents.parse(Path(file).read_bytes())
    except (OSError, documents.StrictJsonError) as error:
        raise errors.bad_names(file=str(file), problem=str(error)) from error
    if not isinstance(said, dict):
        raise errors.bad_names(file=str(file), problem="it is no object of names by names")
    return said


def _name(file: Path | str, found: object) -> str:
    if not isinstance(found, str):
        raise errors.bad_names(file=str(file), problem=f"{found!r} is no name")
    return found
