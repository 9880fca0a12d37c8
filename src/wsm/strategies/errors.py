"""What can be wrong with versions, files, tensors, loads, publications and strategies themselves.

What a caller or another module branches on is a type; the rest are functions that return their family. Every
error is raised before a byte of the target was touched, except where its docstring says otherwise; those
carry ``touched``: weights of which a byte was changed must not serve. Lists are complete in the attributes
and shortened in the message. Knows no states and no words.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, InternalError, NoRoomError, RefusedError
from wsm.printable import counted
from wsm.strategies.tensor import TensorReleasedError

__all__ = [
    "DigestMismatchError",
    "LoadCancelledError",
    "ManifestError",
    "NotARegularFileError",
    "NotFiniteError",
    "PaddleMissingError",
    "PublisherBusyError",
    "SnapshotNotFoundError",
    "StorageError",
    "TensorReleasedError",
    "TiedTensorsDifferError",
    "TrainerTensorError",
    "UnknownStrategyError",
    "UnreadableFileError",
    "VersionExistsError",
    "VersionFileMissingError",
    "VersionMismatchError",
    "listed",
]

_SHOWN = 6


def listed(items: Sequence[object]) -> str:
    """Join `items` for a message, in their own order, the first few only."""
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"


class SnapshotNotFoundError(BadInputError):
    """None of the places where a rank's snapshot may be holds one."""

    unfit = True

    def __init__(
        self,
        *,
        rank: int,
        device_id: int,
        looked_at: Sequence[str],
        present: Sequence[str],
        missing: str | None = None,
    ) -> None:
        why = f": there is no directory {missing}" if missing is not None else ""
        seen = f"; snapshot files seen there: {listed(present)}" if present else ""
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


class UnreadableFileError(BadInputError):
    """The operating system refuses to open or read a file.

    ``touched`` is true when the device failed while the file was being applied.
    """

    unfit = True

    def __init__(self, *, file: str, reason: str, touched: bool = False) -> None:
        super().__init__(
            f"cannot read {file}: {reason}; correct the path or its permissions, or publish again",
            file=file,
            reason=reason,
            touched=touched,
        )


class NotARegularFileError(BadInputError):
    """A directory, pipe or device stands where a file (or a directory) should be."""

    unfit = True

    def __init__(self, *, file: str, found: str, expected: str = "regular file") -> None:
        super().__init__(
            f"{file} is a {found}, expected a {expected}; name another, or publish again",
            file=file,
            found=found,
            expected=expected,
        )


def outside_directory(*, file: str, leads_to: str, directory: str) -> BadInputError:
    """A symbolic link leads out of the snapshot's directory."""
    return BadInputError(
        f"{file} is a link to {leads_to}, outside of {directory}; copy the file there, "
        "or configure the directory that really holds it",
        code="outside-directory",
        unfit=True,
        file=file,
        leads_to=leads_to,
        directory=directory,
    )


def bad_file_size(*, file: str, expected: int, actual: int, touched: bool = False) -> BadInputError:
    """A file is shorter or longer than it says, or than its manifest says.

    ``touched`` is true when the file shrank while it was being applied.
    """
    kind = "truncated" if actual < expected else "longer than announced"
    return BadInputError(
        f"{file} is {kind}: {actual} bytes instead of {expected}; publish the snapshot again",
        code="bad-file-size",
        unfit=True,
        file=file,
        expected=expected,
        actual=actual,
        touched=touched,
    )


def bad_safetensors(*, file: str, problem: str) -> BadInputError:
    """A file is no valid safetensors file."""
    return BadInputError(
        f"{file} is not a valid safetensors file: {problem}; publish the snapshot again",
        code="bad-safetensors",
        unfit=True,
        file=file,
        problem=problem,
    )


def pickle_refused(*, file: str) -> BadInputError:
    """A file is in pickle format, which runs code of its writer's choice when it is read."""
    return BadInputError(
        f"{file} is in pickle format, which may run any code when read, and is refused; convert it with "
        "'wsm convert SOURCE DESTINATION', or set allow_pickle: true if you trust its writer",
        code="pickle-refused",
        unfit=True,
        file=file,
        command="wsm convert SOURCE DESTINATION",
    )


def bad_pickle(*, file: str, problem: str) -> BadInputError:
    """A pickle file that may be read holds something else than a flat state dict of tensors."""
    return BadInputError(
        f"{file} is no state dict: {problem}; save layer.state_dict() and nothing else",
        code="bad-pickle",
        unfit=True,
        file=file,
        problem=problem,
    )


def not_pickle(*, where: str) -> BadInputError:
    """A conversion from pickle found no pickle."""
    return BadInputError(
        f"{where} holds no state dict in pickle format; nothing has to be converted",
        code="not-pickle",
        unfit=True,
        where=where,
    )


def part_sequence(*, base: str, indexes: Sequence[int], problem: str) -> BadInputError:
    """The part files of one shard do not count up without gap or repetition."""
    return BadInputError(
        f"the parts of {base} are numbered {listed(indexes)}: {problem}; publish the snapshot again",
        code="part-sequence",
        unfit=True,
        base=base,
        indexes=tuple(indexes),
        problem=problem,
    )


def mixed_parts(*, field: str, values: Sequence[tuple[str, str]]) -> BadInputError:
    """Files that are to be loaded together were written for different versions, ranks or publications."""
    pairs = listed([f"{file}: {value}" for file, value in values])
    return BadInputError(
        f"the files of one snapshot differ in their {field} ({pairs}); publish the snapshot again",
        code="mixed-parts",
        unfit=True,
        field=field,
        values=tuple(values),
    )


class ManifestError(BadInputError):
    """A manifest is unreadable, damaged or of an unknown layout."""

    unfit = True

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"the manifest {file} cannot be used: {problem}; publish the snapshot again",
            file=file,
            problem=problem,
        )


def differs_from_manifest(*, file: str, problem: str) -> BadInputError:
    """The files beside a manifest, or another manifest, are not what it describes."""
    return BadInputError(
        f"the manifest {file} does not describe what lies beside it: {problem}; publish again",
        code="differs-from-manifest",
        unfit=True,
        file=file,
        problem=problem,
    )


def manifest_missing(
    *, manifest: str, file: str, version: str | None, publication: str | None
) -> BadInputError:
    """Files that wsm published lie there without the manifest that says what they must hold.

    Nothing was changed.
    """
    said = (
        f"{file} says that it was published as version {version}"
        if version is not None
        else f"every file needs its manifest (verify: required), {file} too"
    )
    return BadInputError(
        f"{manifest} is missing, so nothing can be verified: {said}; copy the manifests along with the "
        "parts, or publish again, or load what there is unverified (snapshot: {verify: if_present})",
        code="manifest-missing",
        unfit=True,
        manifest=manifest,
        file=file,
        version=version,
        publication=publication,
    )


def shard_identity(*, file: str, field: str, expected: int, found: int) -> BadInputError:
    """A shard belongs to another rank or another world size."""
    return BadInputError(
        f"{file} was written for {field} {found}, this rank needs {field} {expected}; "
        "publish a shard for every rank of this group",
        code="shard-identity",
        unfit=True,
        file=file,
        field=field,
        expected=expected,
        found=found,
    )


class VersionMismatchError(BadInputError):
    """A snapshot holds another version than was asked for."""

    unfit = True

    def __init__(self, *, requested: str, found: str, where: str) -> None:
        super().__init__(
            f"version {requested} was asked for, but {where} holds version {found}; "
            "publish the version first, or ask for the one that is there",
            requested=requested,
            found=found,
            where=where,
        )


def version_unknown(*, requested: str, where: str) -> BadInputError:
    """A version was asked for, and nothing says which version the files hold."""
    return BadInputError(
        f"version {requested} was asked for, but neither a manifest, nor the files, nor a version.yaml "
        f"in {where} says which they hold; write version.yaml beside them, or ask for no particular one",
        code="version-unknown",
        unfit=True,
        requested=requested,
        where=where,
    )


def source_changed(*, version: str, file: str, found: str, touched: bool) -> BadInputError:
    """Files that name no version are not those any more that every rank has looked at."""
    return BadInputError(
        f"what is loaded as {version} changed while it was loaded: {file} {found}, so nothing says that all "
        "ranks read the same weights; let the trainer be done before the update, or publish under a version",
        code="source-changed",
        unfit=True,
        version=version,
        file=file,
        touched=touched,
    )


class VersionFileMissingError(BadInputError):
    """There is no ``version.yaml``."""

    unfit = True

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"{file} does not exist, so no version is announced there; publish one, or name the version",
            file=file,
        )


def bad_version_file(*, file: str, problem: str) -> BadInputError:
    """A ``version.yaml`` does not hold ``step: <version>``."""
    return BadInputError(
        f"{file} {problem}; it must be a mapping with one field, step: <version>",
        code="bad-version-file",
        unfit=True,
        file=file,
        problem=problem,
    )


def empty_snapshot(*, where: str) -> BadInputError:
    """There is a snapshot, and it holds no tensor."""
    return BadInputError(
        f"{where} holds no tensor; publish the whole state dict",
        code="empty-snapshot",
        unfit=True,
        where=where,
    )


def bad_device_id(*, problem: str) -> BadInputError:
    """The environment does not say which physical device a rank uses."""
    return BadInputError(
        f"no device id for the snapshot's file name: {problem}; set device_id in the configuration",
        code="bad-device-id",
        unfit=True,
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

    unfit = True

    def __init__(self, *, tensor: str, problem: str) -> None:
        super().__init__(
            f"tensor {tensor!r} cannot be published: {problem}; hand over a tensor of paddle "
            "or torch, a numpy array, a C-contiguous buffer, or a (TensorSpec, buffer) pair",
            tensor=tensor,
            problem=problem,
        )


def incomplete_publication(*, version: str, problem: str) -> BadInputError:
    """The shards of a publication are not exactly one per rank. Nothing was published."""
    return BadInputError(
        f"version {version} was not published: {problem}; write exactly one shard per rank",
        code="incomplete-publication",
        unfit=True,
        version=version,
        problem=problem,
    )


def directory_of_other(*, version: str, there: str | None, path: str) -> RefusedError:
    """The directory that a version would get is that of a version with another label."""
    return RefusedError(
        f"version {version} cannot be published: {path} holds version {there}, as happens where the file "
        "system does not tell upper from lower case; publish under a label that differs in more than case",
        code="directory-of-other",
        version=version,
        there=there,
        path=path,
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


def destination_exists(*, file: str) -> RefusedError:
    """A conversion would overwrite a file."""
    return RefusedError(
        f"{file} exists and is not overwritten; remove it or name another",
        code="destination-exists",
        file=file,
    )


class StorageError(RefusedError):
    """The file system did not take what was written (full, read-only, ...). Nothing was published."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(
            f"cannot write {path}: {reason}; nothing was published; make room or correct the path",
            path=path,
            reason=reason,
        )


def not_covered(
    *,
    missing: Sequence[str] = (),
    unknown: Sequence[str] = (),
    duplicate: Sequence[str] = (),
    origins: Sequence[str] = (),
    touched: bool = False,
) -> BadInputError:
    """The offered tensors are not exactly the model's: some are missing, unknown, or offered twice.

    `origins` are the files or peers that bring them. ``touched`` if a stream showed it only after other
    tensors of it were applied.
    """
    found = [
        f"{len(names)} {kind}: {listed([repr(name) for name in names])}"
        for kind, names in (("missing", missing), ("unknown", unknown), ("duplicate", duplicate))
        if names
    ]
    return BadInputError(
        "the snapshot does not cover the model's tensors exactly once: "
        + "; ".join(found)
        + (f"; they come from {listed(origins)}" if origins else "")
        + ("; the load ended part way" if touched else "")
        + "; publish the state dict of this very model and rank",
        code="not-covered",
        unfit=True,
        missing=tuple(missing),
        unknown=tuple(unknown),
        duplicate=tuple(duplicate),
        origins=tuple(origins),
        touched=touched,
    )


def bad_training_names(*, tensor: str, problem: str) -> BadInputError:
    """A map from training names to those of inference does not say which tensor is which."""
    return BadInputError(
        f"the training names cannot be exchanged for those of inference at {tensor!r}: {problem}; map each "
        "training name to one name of the model's, and no two to the same",
        code="bad-training-names",
        unfit=True,
        tensor=tensor,
        problem=problem,
    )


def bad_names(*, file: str, problem: str) -> BadInputError:
    """A file of names cannot be used."""
    return BadInputError(
        f"{file} does not say what the trainer calls the model's tensors: {problem}; write a JSON object, "
        "by the trainer's name the model's, or for names_to_training the other way round",
        code="bad-names",
        file=file,
        problem=problem,
    )


def mapped_name_exists(*, tensor: str, name: str) -> BadInputError:
    """A tensor comes under its training name, and another one under the name that it is mapped to."""
    return BadInputError(
        f"tensor {tensor!r} is called {name!r} in the model, and a tensor {name!r} comes, too; nothing was "
        "touched: leave one of them out, or correct the map of training names",
        code="mapped-name-exists",
        unfit=True,
        tensor=tensor,
        name=name,
    )


def dtype_mismatch(
    *, mismatches: Sequence[tuple[str, str, str, str]], touched: bool = False
) -> BadInputError:
    """Tensors have another dtype than the model's; `mismatches` holds (name, expected, found, origin)."""
    return BadInputError(
        _mismatch_message("dtype", mismatches, touched=touched),
        code="dtype-mismatch",
        unfit=True,
        mismatches=tuple(mismatches),
        touched=touched,
    )


def shape_mismatch(
    *,
    mismatches: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], str]],
    touched: bool = False,
) -> BadInputError:
    """Tensors have another shape than the model's; `mismatches` holds (name, expected, found, origin)."""
    return BadInputError(
        _mismatch_message("shape", mismatches, touched=touched),
        code="shape-mismatch",
        unfit=True,
        mismatches=tuple(mismatches),
        touched=touched,
    )


def _mismatch_message(
    kind: str, mismatches: Sequence[tuple[str, object, object, str]], *, touched: bool
) -> str:
    details = listed(
        [
            f"{name!r} has {kind} {found} in {origin}, the model has {expected}"
            for name, expected, found, origin in mismatches
        ]
    )
    whole = "; the load ended part way" if touched else ""
    return (
        f"{counted(len(mismatches), 'tensor')} of another {kind}: {details}{whole}; "
        "publish this model's own state dict"
    )


class NotFiniteError(BadInputError):
    """A tensor holds NaN or infinity although its manifest promises neither.

    Found in the pass that copies, so the target was touched and must not serve; only loaders of models get
    bytes that were checked before, and what a change leaves as it is may be looked at first.
    """

    unfit = True

    def __init__(self, *, tensor: str, origin: str, index: int, touched: bool = True) -> None:
        super().__init__(
            f"tensor {tensor!r} of {origin} is not finite from element {index} on (in C order), although its "
            "manifest says finite; "
            + ("the load ended part way; " if touched else "")
            + "publish a version without NaN",
            tensor=tensor,
            origin=origin,
            index=index,
            touched=touched,
        )


class TiedTensorsDifferError(BadInputError):
    """A source brings one tensor of the model under two of its names, with different bytes."""

    unfit = True

    def __init__(self, *, tensor: str, name: str, origin: str, touched: bool) -> None:
        super().__init__(
            f"{tensor!r} and {name!r} are one tensor of the model, and {origin} has other bytes there; "
            + ("the load ended part way; " if touched else "")
            + "publish it once, or the same under both names",
            tensor=tensor,
            name=name,
            origin=origin,
            touched=touched,
        )


def partial_load_refused(*, tensor: str, reason: str) -> RefusedError:
    """A partial load would leave tensors without the bytes that it does not bring. Nothing was changed."""
    return RefusedError(
        f"a partial load leaves {tensor!r} as it is, and it cannot stay: {reason}; "
        "load a whole version first",
        code="partial-load-refused",
        unfit=True,
        tensor=tensor,
        reason=reason,
    )


class DigestMismatchError(BadInputError):
    """Bytes that were applied are not those that the manifest promised.

    Found in the pass that copies, so the target was touched and must not serve; only loaders of models get
    bytes that were verified first.
    """

    unfit = True

    def __init__(self, *, tensor: str, origin: str, expected: str, actual: str, touched: bool = True) -> None:
        super().__init__(
            f"tensor {tensor!r} of {origin} is corrupt: digest {actual} instead of {expected}; "
            + ("the load ended part way; " if touched else "")
            + "publish the snapshot again and load it",
            tensor=tensor,
            origin=origin,
            expected=expected,
            actual=actual,
            touched=touched,
        )


class LoadCancelledError(GroupError):
    """The caller no longer wants the load. ``touched`` says whether a byte of the target was changed."""

    def __init__(self, *, tensors_applied: int, tensors: int, touched: bool) -> None:
        super().__init__(
            f"the load was cancelled after {tensors_applied} of {tensors} tensors; "
            + ("the load ended part way" if touched else "the target is as it was"),
            tensors_applied=tensors_applied,
            tensors=tensors,
            touched=touched,
        )


def target_contract(*, tensor: str, problem: str) -> InternalError:
    """A weight target hands out memory that does not fit its own specification. Its weights are touched."""
    return InternalError(
        f"the target's memory for {tensor!r} cannot take the tensor: {problem}",
        code="target-contract",
        tensor=tensor,
        problem=problem,
        touched=True,
    )


def loader_contract(*, loader: str, problem: str, touched: bool) -> InternalError:
    """A model's loader did not do what it said. ``touched`` says whether its weights may be written."""
    return InternalError(
        f"the loader of {loader} broke its contract: {problem}; correct the model's load_weights",
        code="loader-contract",
        loader=loader,
        problem=problem,
        touched=touched,
    )


def models_write_in_place(*, model: str, target: str) -> NoRoomError:
    """A version that models load by themselves was to be staged beside the one that serves."""
    return NoRoomError(
        f"{model} writes a version into its own parameters, and {target} holds others; nothing was changed: "
        "update without --hot",
        code="models-write-in-place",
        model=model,
        target=target,
    )


def no_auxiliary_tensors(*, loader: str, touched: bool = False) -> BadInputError:
    """An auxiliary model takes no tensor of the stream, so it would go on with old weights."""
    return BadInputError(
        f"the auxiliary model {loader} takes no tensor of the stream; its names match none, correct "
        "where its layers begin, or leave the model out",
        code="no-auxiliary-tensors",
        unfit=True,
        loader=loader,
        touched=touched,
    )


def partial_feed() -> RefusedError:
    """A partial update was asked of models with loaders, which build parameters out of several tensors."""
    return RefusedError(
        "a partial update cannot go through the loaders of models: what is missing may be half of a "
        "fused parameter; bring a whole version, or name a strategy that applies by name",
        code="partial-feed",
    )


class UnknownStrategyError(BadInputError):
    """No strategy of that name is wsm's own, was registered, or is announced by an installed package."""

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no load strategy is called {name!r}; use one of {', '.join(known)}",
            name=name,
            known=tuple(known),
        )


def bad_source_type(*, strategy: str, expected: str, found: str) -> BadInputError:
    """A strategy was given another strategy's source."""
    return BadInputError(
        f"strategy {strategy} loads from a {expected}, not from a {found}",
        code="bad-source-type",
        unfit=True,
        strategy=strategy,
        expected=expected,
        found=found,
    )


def strategy_taken(*, name: str, holders: Sequence[str]) -> RefusedError:
    """Another strategy has this name already; `holders` says which, or which two."""
    return RefusedError(
        f"the name {name!r} of a load strategy is taken by {' and by '.join(holders)}; "
        "a name stands for one way on every rank: choose another, or remove what has it",
        code="strategy-taken",
        name=name,
        holders=tuple(holders),
    )


def not_astrategy(*, name: str, origin: str, problem: str) -> BadInputError:
    """What was registered or announced under a name is not what a strategy must be."""
    return BadInputError(
        f"{origin} gives no load strategy {name!r}: {problem}; "
        "give an object of a class that derives from wsm.strategies.Strategy",
        code="not-astrategy",
        name=name,
        origin=origin,
        problem=problem,
    )


def strategy_import(*, name: str, entry_point: str, package: str, reason: str) -> RefusedError:
    """A package announces a strategy of this name and cannot be imported, or its class not be called."""
    return RefusedError(
        f"the package {package} announces the load strategy {name!r} as {entry_point}, which fails: "
        f"{reason}; repair or remove the package where this process runs",
        code="strategy-import",
        name=name,
        entry_point=entry_point,
        package=package,
        reason=reason,
    )


def transfer_option_unavailable(*, option: str, strategy: str) -> RefusedError:
    """A command says of its transfer what its strategy does not have. Nothing was changed."""
    return RefusedError(
        f"{option} is of the strategies rsync and gdr, and versions come by {strategy}; leave it out",
        code="transfer-option-unavailable",
        option=option,
        strategy=strategy,
    )


def transfer_mode_unavailable(*, mode: str, problem: str, available: Sequence[str]) -> RefusedError:
    """The transfer mode that a command asked for is not available here. Nothing was changed."""
    return RefusedError(
        f"the transfer mode {mode!r} cannot be used: {problem}; available are {listed(available) or 'none'}",
        code="transfer-mode-unavailable",
        mode=mode,
        problem=problem,
        available=tuple(available),
    )
