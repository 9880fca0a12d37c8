"""What can be wrong with versions, loads and publications.

Every error is raised before a byte of the target was touched, except where its docstring says
otherwise; those carry ``touched``. Lists are complete in the attributes and shortened in the message.
The errors about files are in :mod:`wsm.strategies.file_errors`, those about tensors that are applied in
:mod:`wsm.strategies.apply_errors`, those about strategies themselves in
:mod:`wsm.strategies.strategy_errors`. Knows no states and no words.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, RefusedError
from wsm.strategies.apply_errors import (
    CoverageError,
    DigestMismatchError,
    DtypeMismatchError,
    LoadCancelledError,
    NotFiniteError,
    PartialLoadRefusedError,
    ShapeMismatchError,
    TargetContractError,
    TiedTensorsDifferError,
)
from wsm.strategies.file_errors import (
    FileSizeError,
    ManifestError,
    ManifestMismatchError,
    ManifestMissingError,
    MixedPartsError,
    NotARegularFileError,
    NotPickleError,
    OutsideDirectoryError,
    PartSequenceError,
    PickleContentError,
    PickleRefusedError,
    SafetensorsFormatError,
    SnapshotNotFoundError,
    UnreadableFileError,
)
from wsm.strategies.strategy_errors import (
    NotAStrategyError,
    SourceTypeError,
    StrategyImportError,
    StrategyTakenError,
    TransferModeError,
    UnknownStrategyError,
)
from wsm.strategies.tensor import TensorReleasedError

__all__ = [
    "CoverageError",
    "DestinationExistsError",
    "DeviceIdError",
    "DigestMismatchError",
    "DtypeMismatchError",
    "EmptySnapshotError",
    "FileSizeError",
    "IncompletePublicationError",
    "LoadCancelledError",
    "ManifestError",
    "ManifestMismatchError",
    "ManifestMissingError",
    "MixedPartsError",
    "NotARegularFileError",
    "NotAStrategyError",
    "NotFiniteError",
    "NotPickleError",
    "OutsideDirectoryError",
    "PaddleMissingError",
    "PartSequenceError",
    "PartialLoadRefusedError",
    "PickleContentError",
    "PickleRefusedError",
    "PublisherBusyError",
    "SafetensorsFormatError",
    "ShapeMismatchError",
    "ShardIdentityError",
    "SnapshotNotFoundError",
    "SourceTypeError",
    "StorageError",
    "StrategyImportError",
    "StrategyTakenError",
    "TargetContractError",
    "TensorReleasedError",
    "TiedTensorsDifferError",
    "TrainerTensorError",
    "TransferModeError",
    "UnknownStrategyError",
    "UnreadableFileError",
    "VersionExistsError",
    "VersionFileError",
    "VersionFileMissingError",
    "VersionMismatchError",
    "VersionNumberError",
    "VersionUnknownError",
]


class ShardIdentityError(BadInputError):
    """A shard belongs to another rank or another world size."""

    def __init__(self, *, file: str, field: str, expected: int, found: int) -> None:
        super().__init__(
            f"{file} was written for {field} {found}, this rank needs {field} {expected}; "
            "publish a shard for every rank of this group",
            file=file,
            field=field,
            expected=expected,
            found=found,
        )


class VersionMismatchError(BadInputError):
    """A snapshot holds another version than was asked for."""

    def __init__(self, *, requested: int, found: int, where: str) -> None:
        super().__init__(
            f"version {requested} was asked for, but {where} holds version {found}; "
            "publish the version first, or ask for the one that is there",
            requested=requested,
            found=found,
            where=where,
        )


class VersionUnknownError(BadInputError):
    """A version was asked for, and nothing says which version the files hold."""

    def __init__(self, *, requested: int, where: str) -> None:
        super().__init__(
            f"version {requested} was asked for, but neither a manifest, nor the files, nor a version.yaml "
            f"in {where} says which they hold; write version.yaml beside them, or ask for no particular one",
            requested=requested,
            where=where,
        )


class VersionNumberError(BadInputError):
    """A version is not an integer in the range that the group's words can carry."""

    def __init__(self, *, value: object, limit: int) -> None:
        super().__init__(
            f"{value!r} is no version; give an integer from 0 to {limit}", value=value, limit=limit
        )


class VersionFileMissingError(BadInputError):
    """There is no ``version.yaml``."""

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"{file} does not exist, so no version is announced there; publish one, or name the version",
            file=file,
        )


class VersionFileError(BadInputError):
    """A ``version.yaml`` does not hold ``step: <version>``."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"{file} {problem}; it must be a mapping with one field, step: <version>",
            file=file,
            problem=problem,
        )


class EmptySnapshotError(BadInputError):
    """There is a snapshot, and it holds no tensor."""

    def __init__(self, *, where: str) -> None:
        super().__init__(f"{where} holds no tensor; publish the whole state dict", where=where)


class DeviceIdError(BadInputError):
    """The environment does not say which physical device a rank uses."""

    def __init__(self, *, problem: str) -> None:
        super().__init__(
            f"no device id for the snapshot's file name: {problem}; set device_id in the configuration",
            problem=problem,
        )


class PaddleMissingError(RefusedError):
    """A pickle file can only be read by paddle, which is not installed."""

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"reading the pickle file {file} takes paddle; install wsm[cpu] or wsm[gpu]", file=file
        )


class TrainerTensorError(BadInputError):
    """A trainer handed over something that is no tensor wsm can write."""

    def __init__(self, *, tensor: str, problem: str) -> None:
        super().__init__(
            f"tensor {tensor!r} cannot be published: {problem}; hand over a numpy array, "
            "a C-contiguous buffer, or a (TensorSpec, buffer) pair",
            tensor=tensor,
            problem=problem,
        )


class IncompletePublicationError(BadInputError):
    """The shards of a publication are not exactly one per rank. Nothing was published."""

    def __init__(self, *, version: int, problem: str) -> None:
        super().__init__(
            f"version {version} was not published: {problem}; write exactly one shard per rank",
            version=version,
            problem=problem,
        )


class VersionExistsError(RefusedError):
    """Other content is already published under this version, and versions never change silently.

    `lacking` says what is not promised of it, where it is the same content.
    """

    def __init__(self, *, version: int, path: str, lacking: Sequence[str] = ()) -> None:
        what = (
            f"with the same tensors, but it does not say {' nor '.join(lacking)}"
            if lacking
            else "with other (or damaged) content"
        )
        super().__init__(
            f"version {version} is already published in {path} {what}; "
            "publish under a new number, or with replace=True",
            version=version,
            path=path,
            lacking=tuple(lacking),
        )


class PublisherBusyError(RefusedError):
    """Another process is publishing into the same directory."""

    def __init__(self, *, directory: str) -> None:
        super().__init__(
            f"another process is publishing into {directory}; wait for it and try again", directory=directory
        )


class DestinationExistsError(RefusedError):
    """A conversion would overwrite a file."""

    def __init__(self, *, file: str) -> None:
        super().__init__(f"{file} exists and is not overwritten; remove it or name another", file=file)


class StorageError(RefusedError):
    """The file system did not take what was written (full, read-only, ...). Nothing was published."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(
            f"cannot write {path}: {reason}; nothing was published; make room or correct the path",
            path=path,
            reason=reason,
        )
