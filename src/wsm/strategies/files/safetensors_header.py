"""The header of a safetensors file: parsed strictly, written canonically. Bytes in, bytes out.

Layout: eight bytes little-endian length, that many bytes of JSON, then the data. The JSON maps each
name to ``dtype``, ``shape`` and ``data_offsets`` (begin and end, counted from the first data byte), and
``__metadata__`` to a map of strings. The data must be covered without gap or overlap
(https://huggingface.co/docs/safetensors). No numpy dtype is involved, so bfloat16 and float8 are as
good as any other. Knows no files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wsm.strategies import errors
from wsm.strategies.documents import strict_json
from wsm.strategies.documents.strict_json import is_count, is_text
from wsm.strategies.tensor import BEGIN_IN_PAGE, ITEM_BYTES, TensorSpec, is_shape

#: Bytes before the JSON.
PREFIX_BYTES = 8
#: The one name that no tensor can have.
METADATA_KEY = "__metadata__"
#: The format's own limit for the JSON, in bytes.
MAX_HEADER_BYTES = 100_000_000

_quoted = json.encoder.encode_basestring
_ALIGNMENT = 64  # data begins on a cache line; the format asks for 8
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


def header_length(prefix: bytes, *, file: str, file_bytes: int) -> int:
    """Return the length of the JSON, in bytes, from the first eight bytes of a file.

    Raises
    ------
    BadInputError
        If the file cannot hold such a header.
    """
    if file_bytes == 0:
        raise errors.bad_safetensors(file=file, problem="it is empty")
    if file_bytes < PREFIX_BYTES + 2:
        raise errors.bad_safetensors(file=file, problem=f"its {file_bytes} bytes are too few for a header")
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise errors.bad_safetensors(
            file=file, problem=f"its header of {length} bytes is larger than {MAX_HEADER_BYTES} bytes"
        )
    if PREFIX_BYTES + length > file_bytes:
        raise errors.bad_safetensors(
            file=file, problem=f"its header of {length} bytes is longer than the file of {file_bytes}"
        )
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
    try:
        fields = strict_json.parse(text)
    except strict_json.StrictJsonError as error:
        raise errors.bad_safetensors(file=file, problem=f"in its header, {error}") from error
    metadata = _metadata(fields.pop(METADATA_KEY, {}), file)
    rows = sorted((_row(name, fields[name], file) for name in fields), key=lambda row: (row[0], row[1]))
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


def build_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Return prefix and JSON of a file whose data is `specs`, one after the other, without gaps."""
    return lay_out(specs, metadata)[0]


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
    boundary, begin = (_PAGE_BYTES, BEGIN_IN_PAGE) if position >= _LARGE_BYTES else (_ALIGNMENT, 0)
    data += b" " * ((begin - PREFIX_BYTES - len(data)) % boundary)
    header = SafetensorsHeader(tuple(specs), tuple(begins), metadata, PREFIX_BYTES + len(data), position)
    return len(data).to_bytes(PREFIX_BYTES, "little") + data, header


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _metadata(value: Any, file: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(is_text(item) for pair in value.items() for item in pair):
        raise errors.bad_safetensors(file=file, problem="its __metadata__ is not a map of strings")
    return value


def _row(name: str, value: Any, file: str) -> tuple[int, int, TensorSpec]:
    if not is_text(name):
        raise errors.bad_safetensors(file=file, problem=f"the name {name!r} is not Unicode")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise errors.bad_safetensors(
            file=file,
            problem=f"tensor {name!r} does not have exactly the fields dtype, shape and data_offsets",
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise errors.bad_safetensors(
            file=file, problem=f"tensor {name!r} has the unsupported dtype {dtype!r}"
        )
    if not is_shape(shape):
        raise errors.bad_safetensors(file=file, problem=f"the shape of {name!r} is no list of extents")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise errors.bad_safetensors(file=file, problem=f"the data_offsets of {name!r} are not two offsets")
    begin, end = offsets
    if math.prod(shape) * ITEM_BYTES[dtype] != end - begin:
        raise errors.bad_safetensors(
            file=file,
            problem=f"tensor {name!r} of dtype {dtype} and shape {shape} cannot lie at {begin}..{end}",
        )
    return begin, end, TensorSpec(name, dtype, tuple(shape))
