"""The safetensors format: its header as bytes, one file open for reading, and writing one.

Layout: eight bytes little-endian length, that many bytes of JSON, then the data. The JSON maps each
name to ``dtype``, ``shape`` and ``data_offsets`` (begin and end, counted from the first data byte), and
``__metadata__`` to a map of strings. The data must be covered without gap or overlap
(https://huggingface.co/docs/safetensors). The header is parsed strictly and written canonically. No numpy
dtype is involved, so bfloat16 and float8 are as good as any other.

Reading uses ``preadv`` into the destination, not a mapping: it is as fast (measured, 15 GiB/s from the page
cache, 7 from tmpfs, against 14 and 6), needs no memory of its own, and a file that shrinks while it is read
gives an error where a mapping gives SIGBUS. The kernel's own readahead sees one file at a time and looks a
few hundred KiB ahead; a load knows the order of all its parts, and asks for what it will need next. Knows
nothing about snapshots or targets.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from wsm.errors import UnfitError
from wsm.strategies import errors
from wsm.strategies.digest import digest_of, running_digest
from wsm.strategies.errors import reading
from wsm.strategies.files.atomic_file import read_all, write_all
from wsm.strategies.promise import Count, Extents, parse
from wsm.strategies.tensor import ALIGNMENT, BEGIN_IN_PAGE, ITEM_BYTES, OTHER_DTYPES, TensorSpec
from wsm.typed import resolved

#: Bytes before the JSON.
PREFIX_BYTES = 8
#: The one name that no tensor can have.
METADATA_KEY = "__metadata__"
#: The format's own limit for the JSON, in bytes.
MAX_HEADER_BYTES = 100_000_000

_quoted = json.encoder.encode_basestring
_LARGE_BYTES = 1 << 20  # data from this size on begins where its copies do not alias
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class SafetensorsHeader:
    """What a file says about itself.

    Parameters
    ----------
    specs : tuple of TensorSpec
        The tensors, in the order in which they lie in the file.
    begins : tuple of int
        Where the bytes of each begin, counted from the first data byte.
    metadata : mapping of str to str
        The writer's remarks.
    data_begin : int
        Where the data begins in the file, in bytes.
    data_bytes : int
        Bytes of all tensors; the file ends behind them.
    """

    specs: tuple[TensorSpec, ...]
    begins: tuple[int, ...]
    metadata: Mapping[str, str]
    data_begin: int
    data_bytes: int


class _HeaderRow(msgspec.Struct, forbid_unknown_fields=True):
    """What a header says of one tensor."""

    dtype: str
    shape: Extents
    data_offsets: tuple[Count, Count]

    def spec(self, name: str, *, file: str) -> TensorSpec:
        """Return the tensor; a ValueError if no tensor of its shape and dtype can lie there."""
        if self.dtype in OTHER_DTYPES:
            raise UnfitError(
                f"{file} is a good safetensors file, and wsm does not move dtype {self.dtype}, which "
                f"{name!r} has; save it as bytes (U8) or as another of {', '.join(ITEM_BYTES)}",
                code="dtype-not-moved",
                file=file,
                tensor=name,
                dtype=self.dtype,
            )
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"unsupported dtype {self.dtype!r}")
        spec, (begin, end) = TensorSpec(name, self.dtype, self.shape), self.data_offsets
        if spec.nbytes != end - begin:
            raise ValueError(f"dtype {self.dtype} and shape {list(self.shape)} cannot lie at {begin}..{end}")
        return spec


def header_length(prefix: bytes, *, file: str, file_bytes: int) -> int:
    """Return the length of the JSON, in bytes, from the first eight bytes of a file.

    Raises
    ------
    BadInputError
        If the file cannot hold such a header.
    """
    length, problem = int.from_bytes(prefix[:PREFIX_BYTES], "little"), ""
    if file_bytes < PREFIX_BYTES + 2:
        problem = f"its {file_bytes} bytes are too few for a header"
    elif length > MAX_HEADER_BYTES:
        problem = f"its header of {length} bytes is larger than {MAX_HEADER_BYTES} bytes"
    elif PREFIX_BYTES + length > file_bytes:
        problem = f"its header of {length} bytes is longer than the file of {file_bytes}"
    if problem:
        raise errors.bad_safetensors(file=file, problem=problem)
    return length


def parse_header(text: bytes, *, file: str, file_bytes: int) -> SafetensorsHeader:
    """Parse the JSON of a header and check it against the size of the file.

    Parameters
    ----------
    text : bytes
        The JSON, without the eight bytes before it.
    file : str
        The file's name, for messages.
    file_bytes : int
        The size of the whole file.

    Raises
    ------
    BadInputError
        If it is no header, or its tensors overlap, leave gaps, or have another size than shape and dtype say.
    BadInputError
        If the data is shorter or longer than the tensors say.
    """
    if not text.startswith(b"{"):
        raise errors.bad_safetensors(file=file, problem="its header does not begin with '{'")
    at = ""
    try:
        fields = parse(text)
        at, said = f"{METADATA_KEY}: ", fields.pop(METADATA_KEY, None)
        metadata = {} if said is None else msgspec.convert(said, dict[str, str])  # as the format's own reader
        rows = []
        for name, row in fields.items():
            at = f"{name!r}: "
            found = msgspec.convert(row, resolved(_HeaderRow))
            rows.append((*found.data_offsets, found.spec(name, file=file)))
    except ValueError as error:
        raise errors.bad_safetensors(file=file, problem=f"in its header, {at}{error}") from error
    rows.sort(key=lambda row: row[:2])
    position = 0
    for begin, end, spec in rows:
        if begin != position:
            problem = "overlaps the one before it" if begin < position else "leaves a gap before it"
            raise errors.bad_safetensors(file=file, problem=f"the data of {spec.name!r} {problem}")
        position = end
    data_begin = PREFIX_BYTES + len(text)
    if data_begin + position != file_bytes:
        raise errors.bad_file_size(file=file, expected=data_begin + position, actual=file_bytes)
    specs, begins = tuple(spec for _, _, spec in rows), tuple(begin for begin, _, _ in rows)
    return SafetensorsHeader(specs, begins, metadata, data_begin, position)


def lay_out(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> tuple[bytes, SafetensorsHeader]:
    """Return prefix and JSON of a file whose data is `specs`, one after the other, and what they say.

    There is one such text for given tensors and remarks: a file that begins with it needs no parsing.
    """
    texts = [f'"{METADATA_KEY}":{_compact(metadata)}'] if metadata else []
    begins = []
    kinds: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
    position = 0
    for spec in specs:
        key = (spec.dtype, spec.shape)
        if key not in kinds:
            text = f'"dtype":{_compact(spec.dtype)},"shape":{_compact(spec.shape)}'
            kinds[key] = (text, spec.nbytes)
        text, nbytes = kinds[key]
        end = position + nbytes
        texts.append(f'{_quoted(spec.name)}:{{{text},"data_offsets":[{position},{end}]}}')
        begins.append(position)
        position = end
    data = f"{{{','.join(texts)}}}".encode()
    boundary, begin = (_PAGE_BYTES, BEGIN_IN_PAGE) if position >= _LARGE_BYTES else (ALIGNMENT, 0)
    data += b" " * ((begin - PREFIX_BYTES - len(data)) % boundary)
    header = SafetensorsHeader(tuple(specs), tuple(begins), metadata, PREFIX_BYTES + len(data), position)
    return len(data).to_bytes(PREFIX_BYTES, "little") + data, header


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Readahead:
    """A window that goes ahead of a load through several files, one behind the other. Any thread may call it.

    Parameters
    ----------
    sizes : sequence of int
        Sizes of the files, in the order in which they are read.
    window_bytes : int
        How far ahead; at most so much is asked for that was not read yet.
    advise : callable
        ``advise(file, offset, length)`` asks for a stretch of the file at that position of `sizes`.
    """

    def __init__(
        self, sizes: Sequence[int], window_bytes: int, advise: Callable[[int, int, int], None]
    ) -> None:
        self._begins = [0, *accumulate(sizes)]
        self._window = window_bytes
        self._advise = advise
        self._asked = 0
        self._lock = threading.Lock()

    def reached(self, file: int, offset: int) -> None:
        """Take in that `file` is about to be read at `offset`; ask for what comes within the window."""
        position = self._begins[file] + offset
        # Half a window at a time: asking for every chunk anew would cost more than it gains.
        if position + self._window // 2 < self._asked or self._asked >= self._begins[-1]:
            return
        with self._lock:
            begin = max(self._asked, position)
            self._asked = end = max(begin, min(position + self._window, self._begins[-1]))
        while begin < end:
            index = bisect_right(self._begins, begin) - 1
            until = min(end, self._begins[index + 1])
            self._advise(index, begin - self._begins[index], until - begin)
            begin = until


class SafetensorsFile:
    """An open file.

    Parameters
    ----------
    descriptor : int
        Open for reading; owned by this object from now on, also if the constructor raises.
    path : str
        Its name, for messages.
    expected : tuple of (bytes, Header), optional
        What :func:`lay_out` says of it; a file that begins with just these bytes is not parsed.

    Attributes
    ----------
    header : Header
        Parsed and checked against the file's size.
    metadata : mapping of str to str
        The writer's remarks.
    nbytes : int
        Size of the file.
    memory_bytes : int
        Tensor bytes that the open file holds in memory: none.

    Raises
    ------
    BadInputError
        If it is no valid file.
    UnreadableFileError
        If reading fails.
    """

    header: SafetensorsHeader
    memory_bytes = 0

    def __init__(
        self, descriptor: int, path: str, expected: tuple[bytes, SafetensorsHeader] | None = None
    ) -> None:
        self.path = path
        self._descriptor = descriptor
        self._reached: Callable[[int], None] | None = None
        try:
            self.nbytes = os.fstat(descriptor).st_size
            if expected is not None and self._begins_as(*expected):
                self.header = expected[1]
                self.metadata = self.header.metadata
                return
            prefix = self._bytes(0, PREFIX_BYTES)
            length = header_length(prefix, file=path, file_bytes=self.nbytes)
            text = self._bytes(PREFIX_BYTES, length)
            self.header = parse_header(text, file=path, file_bytes=self.nbytes)
            self.metadata = self.header.metadata
        except BaseException:
            self.close()
            raise

    def specs(self) -> Iterator[TensorSpec]:
        """Iterate over its tensors, in the order in which they lie in the file."""
        return iter(self.header.specs)

    def readers(self) -> Iterator[tuple[TensorSpec, Callable[[int, memoryview], None]]]:
        """Iterate over its tensors, each with ``read_into(offset in the tensor, destination)``.

        It fills `destination`, and blocks. ``bad-file-size`` says that the file ends early: it was truncated
        after it was opened; UnreadableFileError, that the device failed. `destination` may be partly filled.
        """
        read, begin = self._read, self.header.data_begin
        for spec, offset in zip(self.header.specs, self.header.begins, strict=True):
            yield spec, partial(read, begin + offset)

    def _read(self, begin: int, offset: int, destination: memoryview) -> None:
        position = begin + offset
        if self._reached is not None:
            self._reached(position)
        read_all(self._descriptor, position, destination, file=self.path, expected=self.nbytes)

    def watch(self, reached: Callable[[int], None]) -> None:
        """Have ``reached(position in the file)`` called before each read."""
        self._reached = reached

    def need_soon(self, offset: int, length: int) -> None:
        """Ask the kernel to bring a stretch of the file into the page cache. Does not wait for it."""
        with suppress(OSError):  # some file systems have no such call; reading works without
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begins_as(self, text: bytes, header: SafetensorsHeader) -> bool:
        fits = self.nbytes == header.data_begin + header.data_bytes
        return fits and self._bytes(0, len(text)) == text

    def _bytes(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer at the end of the file, which the parser then reports."""
        with reading(self.path):
            return os.pread(self._descriptor, length, position)


_CHUNK_BYTES = 1 << 21  # digested and written while it is in a shared cache
_SMALL_BYTES = 1 << 16  # up to here a tensor is copied, to be written together with its neighbours


def file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Order tensors for one file: widest dtype first, so that each begins at a multiple of its item size."""
    return sorted(specs, key=lambda spec: -ITEM_BYTES[spec.dtype])


def write_safetensors(
    path: Path,
    specs: Sequence[TensorSpec],
    contents: Iterable[memoryview],
    metadata: Mapping[str, str],
    *,
    durable: bool,
) -> tuple[int, list[str]]:
    """Create `path`, which must not exist; return its size and the digests of its tensors. Blocks.

    Parameters
    ----------
    path : path
        The file.
    specs : sequence of TensorSpec
        Its tensors, in their order in the file.
    contents : iterable of memoryview
        Their bytes, flat, in the same order; each is asked for when it is its turn.
    metadata : mapping of str to str
        For the header.
    durable : bool
        Whether it must survive a power cut once the call has returned; its directory is the caller's matter.

    Raises
    ------
    OSError
        If the file system refuses; a partly written file may be left.
    """
    digests = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        gathered = bytearray(lay_out(specs, metadata)[0])
        for data in contents:
            if len(data) <= _SMALL_BYTES:
                digests.append(digest_of(data))
                gathered += data
                if len(gathered) >= _CHUNK_BYTES:
                    write_all(descriptor, gathered)
                    gathered.clear()
                continue
            write_all(descriptor, gathered)
            gathered.clear()
            digests.append(_write_large(descriptor, data))
        write_all(descriptor, gathered)
        if durable:
            os.fsync(descriptor)
        return os.fstat(descriptor).st_size, digests
    finally:
        os.close(descriptor)


def _write_large(descriptor: int, data: memoryview) -> str:
    """Write a tensor where the file ends, up to the next boundary of a chunk each time; return its digest.

    A file system gives each write memory of its own size if it begins at a multiple of it, and what lies in
    large pages is read faster.
    """
    digest = running_digest()
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    offset = 0
    while offset < len(data):
        chunk = data[offset : offset + _CHUNK_BYTES - (position + offset) % _CHUNK_BYTES]
        digest.update(chunk)
        write_all(descriptor, chunk)
        offset += len(chunk)
    return digest.hexdigest()
