"""Opening one file of a shard as what it is: safetensors, or a pickle that is refused unless it is allowed.

The format is told from the content, not from the place or the name: FastDeploy reads some places in one
format and some in the other, and its old files can be read in neither (a pickle under a safetensors name).
A pickle is read with paddle, which is imported only then: the process has decided to trust the file, since
reading it runs what its writer put into it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from wsm.errors import RefusedError, UnfitError
from wsm.strategies import errors
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.dtype_names import PADDLE_DTYPES, paddle_name
from wsm.strategies.errors import UnreadableFileError, reading, storing
from wsm.strategies.files.atomic_file import sync_directory
from wsm.strategies.files.safetensors import (
    PREFIX_BYTES,
    SafetensorsFile,
    SafetensorsHeader,
    file_order,
    write_safetensors,
)
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.files.snapshot_names import is_snapshot_file
from wsm.strategies.tensor import TensorSpec


def imported_paddle(file: str) -> Any:
    """Return paddle, for reading a file that nothing else reads; RefusedError where it is not installed."""
    try:
        import paddle  # noqa: PLC0415 - two thirds of a second, and not installed everywhere
    except ImportError as error:
        text = f"reading the pickle file {file} takes paddle; install wsm[cpu] or wsm[gpu]"
        raise RefusedError(text, code="paddle-missing", file=file) from error
    return paddle


def unpickled(descriptor: int, *, file: str) -> Any:
    """Return what a pickle file holds; RefusedError without paddle, BadInputError if it cannot read it."""
    paddle = imported_paddle(file)
    try:
        return paddle.load(f"/proc/self/fd/{descriptor}")
    except Exception as error:  # unpickling may raise anything
        raise errors.bad_pickle(file=file, problem=f"paddle cannot read it: {error}") from error


def _tensor(name: object, value: Any, file: str) -> tuple[TensorSpec, memoryview]:
    if not isinstance(name, str) or not hasattr(value, "numpy") or not hasattr(value, "dtype"):
        raise errors.bad_pickle(file=file, problem=f"{name!r} is a {type(value).__name__}, not a tensor")
    dtype = paddle_name(value)
    if dtype not in PADDLE_DTYPES:
        raise errors.bad_pickle(file=file, problem=f"{name!r} has the unsupported dtype {dtype}")
    spec = TensorSpec(name, PADDLE_DTYPES[dtype], tuple(value.shape))
    array = value.numpy()
    data = memoryview(array.reshape(-1).view("u1")) if array.size else memoryview(b"")
    return spec, data


class PickleFile:
    """A pickle file, read whole.

    Parameters
    ----------
    descriptor : int
        Open for reading; closed by the constructor.
    path : str
        Its name, for messages.

    Raises
    ------
    RefusedError, BadInputError
        If it cannot be read.
    """

    metadata: Mapping[str, str] = {}

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        try:
            self.nbytes = os.fstat(descriptor).st_size
            state = unpickled(descriptor, file=path)
            if not isinstance(state, dict) or not state:
                problem = f"it holds a {type(state).__name__}, or nothing"
                raise errors.bad_pickle(file=path, problem=problem)
            self._tensors = {name: _tensor(name, value, path) for name, value in state.items()}
        finally:
            os.close(descriptor)
        self.memory_bytes = sum(spec.nbytes for spec, _ in self._tensors.values())

    def specs(self) -> Iterator[TensorSpec]:
        """Iterate over its tensors."""
        return (spec for spec, _ in self._tensors.values())

    def readers(self) -> Iterator[tuple[TensorSpec, Callable[[int, memoryview], None]]]:
        """Iterate over its tensors, each with ``read_into(offset in the tensor, destination)``."""
        for spec, data in self._tensors.values():
            yield spec, partial(_copy, data)

    def data(self, name: str) -> memoryview:
        """Return the bytes of one tensor."""
        return self._tensors[name][1]

    def close(self) -> None:
        """Let the tensors go. Idempotent."""
        self._tensors = {}


def _copy(data: memoryview, offset: int, destination: memoryview) -> None:
    copy_bytes(data[offset : offset + len(destination)], destination)


_SNIFF_BYTES = PREFIX_BYTES + 1
_PICKLE_PROTOCOLS = range(2, 6)


#: An open file of a shard.
PartFile: TypeAlias = SafetensorsFile | PickleFile


def open_part(
    directory: SnapshotDirectory,
    name: str,
    *,
    allow_pickle: bool,
    expected: tuple[bytes, SafetensorsHeader] | None = None,
) -> PartFile:
    """Open `name` and check its header. Blocks on metadata only, unless it is an allowed pickle.

    Parameters
    ----------
    directory : SnapshotDirectory
        Where it lies.
    name : str
        Its name there.
    allow_pickle : bool
        Whether a pickle may be read.
    expected : tuple of (bytes, Header), optional
        The header that it has if all is well; see
        :class:`wsm.strategies.files.safetensors.SafetensorsFile`.

    Raises
    ------
    BadInputError
        If it is a pickle and these are not allowed.
    wsm.strategies.errors.BadInputError
        If it cannot be opened, or is no valid file of its format.
    """
    path = directory.locate(name)
    try:
        descriptor = directory.open(name)
    except FileNotFoundError as error:
        raise UnreadableFileError(file=path, reason="it vanished, or is a link to nothing") from error
    try:
        pickled = is_pickle(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    if not pickled:
        return SafetensorsFile(descriptor, path, expected)
    if not allow_pickle:
        os.close(descriptor)
        command = "wsm convert SOURCE DESTINATION"
        raise UnfitError(
            f"{path} is in pickle format, which may run any code when read, and is refused; convert it with "
            f"'{command}', or set allow_pickle: true if you trust its writer",
            code="pickle-refused",
            file=path,
            command=command,
        )
    return PickleFile(descriptor, path)


def is_pickle(descriptor: int, file: str) -> bool:
    """Whether an open file begins as a pickle and could be no safetensors file."""
    with reading(file):
        head = os.pread(descriptor, _SNIFF_BYTES, 0)
    if len(head) < 2 or head[0] != 0x80 or head[1] not in _PICKLE_PROTOCOLS:
        return False
    # A safetensors header of 1152 bytes begins with 80 04 as well; only that one goes on with '{' and fits.
    fits = int.from_bytes(head[:PREFIX_BYTES], "little") <= os.fstat(descriptor).st_size
    return not (head[PREFIX_BYTES:] == b"{" and fits)


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
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if is_snapshot_file(path.name))
    pickles = [file for file in files if _is_pickle(file)]
    if not pickles:
        raise UnfitError(
            f"{source} holds no state dict in pickle format; nothing has to be converted",
            code="not-pickle",
            where=str(source),
        )
    into_directory = source.is_dir() or destination.is_dir()
    pairs = [(file, destination / file.name if into_directory else destination) for file in pickles]
    for _, target in pairs:
        if target.exists():
            raise errors.destination_exists(file=str(target))
    with storing(destination):
        (destination if into_directory else destination.parent).mkdir(parents=True, exist_ok=True)
        for file, target in pairs:
            _convert_file(file, target)
    return ConversionReport(
        converted=tuple((str(file), str(target)) for file, target in pairs),
        skipped=tuple(str(file) for file in files if file not in pickles),
    )


def _is_pickle(path: Path) -> bool:
    descriptor = _open(path)
    try:
        return is_pickle(descriptor, str(path))
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
