"""What can be wrong with the files of a snapshot. Part of :mod:`wsm.strategies.errors`, which re-exports it.

Every error is raised before a byte of the target was touched, except where its docstring says
otherwise; those carry ``touched``. Lists are complete in the attributes and shortened in the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError

_SHOWN = 6


def listed(items: Sequence[object]) -> str:
    """Join `items` for a message, in their own order, the first few only."""
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"


class SnapshotNotFoundError(BadInputError):
    """None of the places where a rank's snapshot may be holds one."""

    def __init__(
        self, *, rank: int, device_id: int, looked_at: Sequence[str], present: Sequence[str]
    ) -> None:
        seen = f"; snapshot files seen there: {listed(present)}" if present else ""
        super().__init__(
            f"no snapshot found for rank {rank} on device {device_id}; looked, in this order, for "
            + "; ".join(looked_at)
            + f"{seen}; publish one, or correct the directory, rank or device id",
            rank=rank,
            device_id=device_id,
            looked_at=tuple(looked_at),
            present=tuple(present),
        )


class UnreadableFileError(BadInputError):
    """The operating system refuses to open or read a file.

    ``touched`` is true when the device failed while the file was being applied.
    """

    def __init__(self, *, file: str, reason: str, touched: bool = False) -> None:
        super().__init__(
            f"cannot read {file}: {reason}; correct the path or its permissions, or publish again",
            file=file,
            reason=reason,
            touched=touched,
        )


class NotARegularFileError(BadInputError):
    """A directory, pipe or device stands where a file (or a directory) should be."""

    def __init__(self, *, file: str, found: str, expected: str = "regular file") -> None:
        super().__init__(
            f"{file} is a {found}, expected a {expected}; remove it or publish again",
            file=file,
            found=found,
            expected=expected,
        )


class OutsideDirectoryError(BadInputError):
    """A symbolic link leads out of the snapshot's directory."""

    def __init__(self, *, file: str, leads_to: str, directory: str) -> None:
        super().__init__(
            f"{file} is a link to {leads_to}, outside of {directory}; copy the file there, "
            "or configure the directory that really holds it",
            file=file,
            leads_to=leads_to,
            directory=directory,
        )


class FileSizeError(BadInputError):
    """A file is shorter or longer than it says, or than its manifest says.

    ``touched`` is true when the file shrank while it was being applied.
    """

    def __init__(self, *, file: str, expected: int, actual: int, touched: bool = False) -> None:
        kind = "truncated" if actual < expected else "longer than announced"
        super().__init__(
            f"{file} is {kind}: {actual} bytes instead of {expected}; publish the snapshot again",
            file=file,
            expected=expected,
            actual=actual,
            touched=touched,
        )


class SafetensorsFormatError(BadInputError):
    """A file is no valid safetensors file."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"{file} is not a valid safetensors file: {problem}; publish the snapshot again",
            file=file,
            problem=problem,
        )


class PickleRefusedError(BadInputError):
    """A file is in pickle format, which runs code of its writer's choice when it is read."""

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"{file} is in pickle format, which may run any code when read, and is refused; convert it with "
            "'wsm convert SOURCE DESTINATION', or set allow_pickle: true if you trust its writer",
            file=file,
            command="wsm convert SOURCE DESTINATION",
        )


class PickleContentError(BadInputError):
    """A pickle file that may be read holds something else than a flat state dict of tensors."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"{file} is no state dict: {problem}; save layer.state_dict() and nothing else",
            file=file,
            problem=problem,
        )


class NotPickleError(BadInputError):
    """A conversion from pickle found no pickle."""

    def __init__(self, *, where: str) -> None:
        super().__init__(
            f"{where} holds no state dict in pickle format; nothing has to be converted", where=where
        )


class PartSequenceError(BadInputError):
    """The part files of one shard do not count up without gap or repetition."""

    def __init__(self, *, base: str, indexes: Sequence[int], problem: str) -> None:
        super().__init__(
            f"the parts of {base} are numbered {listed(indexes)}: {problem}; publish the snapshot again",
            base=base,
            indexes=tuple(indexes),
            problem=problem,
        )


class MixedPartsError(BadInputError):
    """Files that are to be loaded together were written for different versions, ranks or publications."""

    def __init__(self, *, field: str, values: Sequence[tuple[str, str]]) -> None:
        pairs = listed([f"{file}: {value}" for file, value in values])
        super().__init__(
            f"the files of one snapshot differ in their {field} ({pairs}); publish the snapshot again",
            field=field,
            values=tuple(values),
        )


class ManifestError(BadInputError):
    """A manifest is unreadable, damaged or of an unknown layout."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"the manifest {file} cannot be used: {problem}; publish the snapshot again",
            file=file,
            problem=problem,
        )


class ManifestMismatchError(BadInputError):
    """The files beside a manifest, or another manifest, are not what it describes."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(
            f"the manifest {file} does not describe what lies beside it: {problem}; publish again",
            file=file,
            problem=problem,
        )


class ManifestMissingError(BadInputError):
    """Files that wsm published lie there without the manifest that says what they must hold.

    Nothing was changed.
    """

    def __init__(self, *, manifest: str, file: str, version: int | None, publication: str | None) -> None:
        said = (
            f"{file} says that it was published as version {version}"
            if version is not None
            else f"every file needs its manifest (verify: required), {file} too"
        )
        super().__init__(
            f"{manifest} is missing, so nothing can be verified: {said}; copy the manifests along with the "
            "parts, or publish again, or load what there is unverified (snapshot: {verify: if_present})",
            manifest=manifest,
            file=file,
            version=version,
            publication=publication,
        )
