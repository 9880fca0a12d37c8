"""What can be wrong with versions, files, tensors, loads, publications and strategies themselves.

What a caller or another module branches on is a type; the rest are functions that return their family. Every
error that ends a load says ``touched`` (:func:`wsm.strategies.observer.stamping`): weights of which a byte
was changed must not serve. Lists are complete in the attributes and shortened in the message. Knows no states
and no words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wsm.errors import BadInputError, GroupError, InternalError, RefusedError, UnfitError, coded, remedy
from wsm.printable import counted
from wsm.strategies.tensor import TensorSpec

_SHOWN = 6


def listed(items: Sequence[object]) -> str:
    """Join `items` for a message, in their own order, the first few only."""
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"


class SnapshotNotFoundError(UnfitError):
    """None of the places where a rank's snapshot may be holds one."""

    def __init__(
        self,
        *,
        rank: int,
        device_id: int,
        looked_at: Sequence[str],
        present: Sequence[str],
        missing: str | None = None,
        retired: bool = False,
    ) -> None:
        why = f": there is no directory {missing}" if missing is not None else ""
        seen = f"; snapshot files seen there: {listed(present)}" if present else ""
        if retired:
            seen += "; older ones were retired there (a publisher keeps 2; its Retention may say otherwise)"
        super().__init__(
            f"no snapshot found for rank {rank} on device {device_id}{why}; looked, in this order, for "
            + "; ".join(looked_at)
            + f"{seen}; publish one, or correct the directory, rank or device id",
            rank=rank,
            device_id=device_id,
            looked_at=tuple(looked_at),
            present=tuple(present),
            missing=missing,
        )


class UnreadableFileError(UnfitError):
    """The operating system refuses to open or read a file."""

    def __init__(self, *, file: str, reason: str, fix: str | None = None) -> None:
        super().__init__(
            f"cannot read {file}: {reason}; {fix or 'correct the path or its permissions, or publish again'}",
            file=file,
            reason=reason,
        )


@coded("not-a-regular-file")
def not_a_regular_file(*, file: str, found: str, expected: str = "regular file") -> BadInputError:
    """A directory, pipe or device stands where a file (or a directory) should be."""
    return UnfitError(f"{file} is a {found}, expected a {expected}; name another, or publish again")


@coded("bad-file-size")
def bad_file_size(*, file: str, expected: int, actual: int) -> BadInputError:
    """A file is shorter or longer than it says, or than its manifest says."""
    kind = "truncated" if actual < expected else "longer than announced"
    return UnfitError(f"{file} is {kind}: {actual} bytes instead of {expected}; publish the snapshot again")


@coded("bad-safetensors")
def bad_safetensors(*, file: str, problem: str) -> BadInputError:
    """A file is no valid safetensors file."""
    return UnfitError(f"{file} is not a valid safetensors file: {problem}; publish the snapshot again")


@coded("bad-pickle")
def bad_pickle(*, file: str, problem: str) -> BadInputError:
    """A pickle file that may be read holds something else than a flat state dict of tensors."""
    return UnfitError(f"{file} is no state dict: {problem}; save layer.state_dict() and nothing else")


@coded("mixed-parts")
def mixed_parts(*, field: str, values: Sequence[tuple[str, str]]) -> BadInputError:
    """Files that are to be loaded together were written for different versions, ranks or publications."""
    pairs = listed([f"{file}: {value}" for file, value in values])
    return UnfitError(
        f"the files of one snapshot differ in their {field} ({pairs}); publish the snapshot again",
        values=tuple(values),
    )


class ManifestError(UnfitError):
    """A manifest is unreadable, damaged or of an unknown layout."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"the manifest {file} cannot be used: {problem}; publish the snapshot again",
            file=file,
            problem=problem,
        )


@coded("differs-from-manifest")
def differs_from_manifest(*, file: str, problem: str) -> BadInputError:
    """The files beside a manifest, or another manifest, are not what it describes."""
    return UnfitError(f"the manifest {file} does not describe what lies beside it: {problem}; publish again")


@coded("shard-identity")
def shard_identity(*, file: str, field: str, expected: int, found: int) -> BadInputError:
    """A shard belongs to another rank or another world size."""
    return UnfitError(
        f"{file} was written for {field} {found}, this rank needs {field} {expected}; "
        "publish a shard for every rank of this group"
    )


class VersionMismatchError(UnfitError):
    """A snapshot holds another version than was asked for."""

    def __init__(self, *, requested: str, found: str, where: str) -> None:
        super().__init__(
            f"version {requested} was asked for, but {where} holds version {found}; "
            "publish the version first, or ask for the one that is there",
            requested=requested,
            found=found,
            where=where,
        )


def source_changed(*, version: str, file: str, found: str, touched: bool) -> BadInputError:
    """Files that name no version are not those any more that every rank has looked at."""
    return UnfitError(
        f"what is loaded as {version} changed while it was loaded: {file} {found}, so nothing says that all "
        "ranks read the same weights; let the trainer be done before the update, or publish under a version",
        code="source-changed",
        version=version,
        file=file,
        touched=touched,
    )


@coded("version-file-missing")
def version_file_missing(*, file: str) -> BadInputError:
    """There is no ``version.yaml``."""
    return UnfitError(
        f"{file} does not exist, so no version is announced there; publish one, or name the version"
    )


@coded("bad-version-file")
def bad_version_file(*, file: str, problem: str) -> BadInputError:
    """A ``version.yaml`` does not hold ``step: <version>``."""
    return UnfitError(f"{file} {problem}; it must be a mapping with one field, step: <version>")


@coded("empty-snapshot")
def empty_snapshot(*, where: str) -> BadInputError:
    """There is a snapshot, and it holds no tensor."""
    return UnfitError(f"{where} holds no tensor; publish the whole state dict")


@coded("bad-device-id")
def bad_device_id(*, problem: str) -> BadInputError:
    """The environment does not say which physical device a rank uses."""
    return UnfitError(
        f"no device id for the snapshot's file name: {problem}; set device_id in the configuration"
    )


@coded("trainer-tensor")
def trainer_tensor(*, tensor: str, problem: str) -> BadInputError:
    """A trainer handed over something that is no tensor wsm can write."""
    return UnfitError(
        f"tensor {tensor!r} cannot be published: {problem}; hand over a tensor of paddle "
        "or torch, a numpy array, a C-contiguous buffer, or a (TensorSpec, buffer) pair"
    )


@coded("trainer-tensor")
def trainer_tensor_not_finite(*, tensor: str, element: int, rank: int | None) -> BadInputError:
    """A tensor that is to be published as finite holds NaN or infinity."""
    of = "" if rank is None else f" of rank {rank}"
    return UnfitError(
        f"tensor {tensor!r}{of} cannot be published: element {element} is not finite, which finite=True "
        "refuses; keep the version before, or publish without finite if it is meant"
    )


@coded("incomplete-publication")
def incomplete_publication(*, version: str, problem: str) -> BadInputError:
    """The shards of a publication are not exactly one per rank. Nothing was published."""
    return UnfitError(f"version {version} was not published: {problem}; write exactly one shard per rank")


@coded("already-sealed")
def already_sealed(*, version: str, problem: str) -> RefusedError:
    """A job has sealed the version, which stands as it was sealed."""
    return RefusedError(
        f"version {version} is sealed, and {problem}; publish under a new label, or as a new job"
    )


class VersionExistsError(RefusedError):
    """Other content is already published under this version, and versions never change silently.

    `lacking` says what is not promised of it, where it is the same content.
    """

    def __init__(self, *, version: str, path: str, lacking: Sequence[str] = ()) -> None:
        what = (
            f"with the same tensors, but it does not say {' nor '.join(lacking)}"
            if lacking
            else "with other (or damaged) content"
        )
        super().__init__(
            f"version {version} is already published in {path} {what}; "
            "publish under a new label, or with replace=True",
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


@coded("destination-exists")
def destination_exists(*, file: str) -> RefusedError:
    """A conversion would overwrite a file."""
    return RefusedError(f"{file} exists and is not overwritten; remove it or name another")


class StorageError(RefusedError):
    """The file system did not take what was written (full, read-only, ...), or the process may open no more.

    Nothing was published, unless `visible` names the version: it can be loaded by its label, and
    ``version.yaml`` does not name it yet. The same publication again announces it.
    """

    def __init__(self, *, path: Path | str, error: OSError, visible: str | None = None) -> None:
        reason = error.strerror or str(error)
        done = (
            "nothing was published"
            if visible is None
            else f"version {visible} can be loaded by its label and was not announced: publish it again"
        )
        super().__init__(
            f"cannot write {path}: {reason}; {done}; {remedy(error) or 'make room or correct the path'}",
            path=str(path),
            reason=reason,
            visible=visible,
        )


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Turn what the operating system refuses within into an UnreadableFileError, unless there is no file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UnreadableFileError(file=file, reason=str(error), fix=remedy(error)) from error


@contextmanager
def storing(path: Path | str) -> Iterator[None]:
    """Turn what the file system refuses within into a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(path=path, error=error) from error


def not_covered(
    *,
    missing: Sequence[str] = (),
    unknown: Sequence[str] = (),
    duplicate: Sequence[str] = (),
    origins: Sequence[str] = (),
    fix: str | None = None,
) -> BadInputError:
    """The offered tensors are not exactly the model's: some are missing, unknown, or offered twice.

    `origins` are the files or peers that bring them. A prefix that all missing names come with is named.
    """
    prefix = common_prefix(missing, unknown)
    if prefix is not None:
        fix = f"the names fit but for the prefix {prefix!r}: leave it out (names: {{strip: {prefix!r}}})"
    found = [
        f"{len(names)} {kind}: {listed([repr(name) for name in names])}"
        for kind, names in (("missing", missing), ("unknown", unknown), ("duplicate", duplicate))
        if names
    ]
    return UnfitError(
        "the snapshot does not cover the model's tensors exactly once: "
        + "; ".join(found)
        + (f"; they come from {listed(origins)}" if origins else "")
        + f"; {fix or 'publish the state dict of this very model and rank'}",
        code="not-covered",
        missing=tuple(missing),
        unknown=tuple(unknown),
        duplicate=tuple(duplicate),
        origins=tuple(origins),
    )


def common_prefix(missing: Sequence[str], unknown: Sequence[str]) -> str | None:
    """Return what stands before every missing name among the unknown ones; None if nothing does."""
    for name in unknown if missing else ():
        prefix = name.removesuffix(missing[0])
        if prefix != name and {f"{prefix}{each}" for each in missing} <= set(unknown):
            return prefix
    return None


@coded("bad-training-names")
def bad_training_names(*, tensor: str, problem: str) -> BadInputError:
    """A map from training names to those of inference does not say which tensor is which."""
    return UnfitError(
        f"the training names cannot be exchanged for those of inference at {tensor!r}: {problem}; map each "
        "training name to one name of the model's, and no two to the same"
    )


@coded("bad-names")
def bad_names(*, file: str, problem: str) -> BadInputError:
    """A file of names cannot be used."""
    return BadInputError(
        f"{file} does not say what the trainer calls the model's tensors: {problem}; write a JSON object, "
        "by the trainer's name the model's, or for names_to_training the other way round"
    )


def check_kinds(rows: Iterable[tuple[TensorSpec, TensorSpec, str]]) -> None:
    """See that tensors have the model's dtypes and shapes: each as it is, as the model has it, its origin.

    Raises
    ------
    BadInputError (``dtype-mismatch``, ``shape-mismatch``)
        If some have not; `mismatches` holds (name, expected, found, origin) of each.
    """
    rows = list(rows)
    wrong, text = _of_another("dtype", rows)
    if wrong:
        raise UnfitError(text, code="dtype-mismatch", mismatches=wrong)
    wrong, text = _of_another("shape", rows)
    if wrong:
        raise UnfitError(text, code="shape-mismatch", mismatches=wrong)


def _of_another(
    kind: str, rows: Iterable[tuple[TensorSpec, TensorSpec, str]]
) -> tuple[tuple[tuple[str, object, object, str], ...], str]:
    wrong = tuple(
        (found.name, getattr(model, kind), getattr(found, kind), origin)
        for found, model, origin in rows
        if getattr(found, kind) != getattr(model, kind)
    )
    details = listed(
        [
            f"{name!r} has {kind} {found} in {origin}, the model has {expected}"
            for name, expected, found, origin in wrong
        ]
    )
    text = (
        f"{counted(len(wrong), 'tensor')} of another {kind}: {details}; publish this model's own state dict"
    )
    return wrong, text


@coded("tied-tensors-differ")
def tied_tensors_differ(*, tensor: str, name: str, origin: str) -> BadInputError:
    """A source brings one tensor of the model under two of its names, with different bytes."""
    return UnfitError(
        f"{tensor!r} and {name!r} are one tensor of the model, and {origin} has other bytes there; "
        "publish it once, or the same under both names"
    )


class DigestMismatchError(UnfitError):
    """Bytes that were applied are not those that the manifest promised.

    Found in the pass that copies, so the target was touched and must not serve; only loaders of models get
    bytes that were verified first.
    """

    def __init__(self, *, tensor: str, origin: str, expected: str, actual: str) -> None:
        super().__init__(
            f"tensor {tensor!r} of {origin} is corrupt: digest {actual} instead of {expected}; "
            "publish the snapshot again and load it",
            tensor=tensor,
            origin=origin,
            expected=expected,
            actual=actual,
        )


class LoadCancelledError(GroupError):
    """The caller no longer wants the load."""

    def __init__(self, *, tensors_applied: int, tensors: int) -> None:
        super().__init__(
            f"the load was cancelled after {tensors_applied} of {tensors} tensors",
            tensors_applied=tensors_applied,
            tensors=tensors,
        )


@coded("loader-contract")
def loader_contract(*, loader: str, problem: str) -> InternalError:
    """A model's loader did not do what it said."""
    return InternalError(
        f"the loader of {loader} broke its contract: {problem}; correct the model's load_weights"
    )


@coded("no-auxiliary-tensors")
def no_auxiliary_tensors(*, loader: str) -> BadInputError:
    """An auxiliary model takes no tensor of the stream, so it would go on with old weights."""
    return UnfitError(
        f"the auxiliary model {loader} takes no tensor of the stream; its names match none, correct "
        "where its layers begin, or leave the model out"
    )


@coded("transfer-mode-unavailable")
def transfer_mode_unavailable(*, mode: str, problem: str, available: Sequence[str]) -> RefusedError:
    """The transfer mode that a command asked for is not available here. Nothing was changed."""
    return RefusedError(
        f"the transfer mode {mode!r} cannot be used: {problem}; available are {listed(available) or 'none'}",
        available=tuple(available),
    )
