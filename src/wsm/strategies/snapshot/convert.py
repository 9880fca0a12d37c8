"""Turning pickle files into safetensors files, once, because the user asked for it: ``wsm convert``.

To convert a file is to trust its writer: reading a pickle runs what is in it. The result holds the
same names, dtypes and bytes, and can be loaded without that trust.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from wsm.errors import BadInputError
from wsm.strategies import errors
from wsm.strategies.errors import StorageError, UnreadableFileError
from wsm.strategies.files.atomic_file import sync_directory
from wsm.strategies.files.part_file import PickleFile, is_pickle
from wsm.strategies.files.safetensors import file_order, write_safetensors
from wsm.strategies.files.snapshot_names import is_snapshot_file


@dataclass(frozen=True)
class ConversionReport:
    """What was converted: pairs of (source, destination), and snapshot files that were no pickles."""

    converted: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]


def convert(source: Path | str, destination: Path | str) -> ConversionReport:
    """Convert one pickle file, or every pickled snapshot file of a directory. Blocks; runs pickle.

    Parameters
    ----------
    source : path or str
        A file with a flat state dict, or a directory with ``model_state.*.pdparams`` files.
    destination : path or str
        The file to write; or a directory, in which files keep their names. Nothing is overwritten.

    Raises
    ------
    UnreadableFileError
        If `source` does not exist or cannot be read.
    BadInputError
        If there is no pickle in it.
    RefusedError
        If a file would be overwritten; nothing was converted then.
    RefusedError, BadInputError
        If a pickle cannot be read.
    StorageError
        If the file system refuses.
    """
    source, destination = Path(source), Path(destination)
    files = _candidates(source)
    pickles = [file for file in files if _is_pickle(file)]
    if not pickles:
        raise BadInputError(
            f"{source} holds no state dict in pickle format; nothing has to be converted",
            code="not-pickle",
            where=str(source),
            unfit=True,
        )
    into_directory = source.is_dir() or destination.is_dir()
    pairs = [(file, destination / file.name if into_directory else destination) for file in pickles]
    for _, target in pairs:
        if target.exists():
            raise errors.destination_exists(file=str(target))
    try:
        (destination if into_directory else destination.parent).mkdir(parents=True, exist_ok=True)
        for file, target in pairs:
            _convert_file(file, target)
    except OSError as error:
        raise StorageError(path=destination, error=error) from error
    return ConversionReport(
        converted=tuple((str(file), str(target)) for file, target in pairs),
        skipped=tuple(str(file) for file in files if file not in pickles),
    )


def _candidates(source: Path) -> Sequence[Path]:
    if not source.is_dir():
        return [source]
    return sorted(path for path in source.iterdir() if is_snapshot_file(path.name))


def _is_pickle(path: Path) -> bool:
    descriptor = _open(path)
    try:
        return is_pickle(descriptor)
    except OSError as error:
        raise UnreadableFileError(file=str(path), reason=error.strerror or str(error)) from error
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UnreadableFileError(file=str(path), reason=error.strerror or str(error)) from error


def _convert_file(source: Path, destination: Path) -> None:
    temporary = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}")
    with closing(PickleFile(_open(source), str(source))) as part:
        specs = file_order(part.specs())
        try:
            write_safetensors(temporary, specs, (part.data(spec.name) for spec in specs), {}, durable=True)
            os.link(temporary, destination)  # unlike a rename, it never overwrites
        except FileExistsError as error:
            raise errors.destination_exists(file=str(destination)) from error
        finally:
            temporary.unlink(missing_ok=True)
    sync_directory(destination.parent)
