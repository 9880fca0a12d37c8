"""Every format of wsm that is read from files and peers, each as a :class:`fuzz.invariant.Format`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from fuzz.command_line import command_line
from fuzz.http_requests import http_request
from fuzz.invariant import Format
from fuzz.sealed import sealed_formats
from fuzz.texts import text_formats
from wsm.errors import BadInputError, GroupError
from wsm.strategies.buckets import _bucket_messages as bucket_messages
from wsm.strategies.delta._blocks import Block, BlockKind, table_problem
from wsm.strategies.delta._codec import BlockError
from wsm.strategies.delta._codec import decode as unfold
from wsm.strategies.delta._codec import encode as fold
from wsm.strategies.digest import digest_of
from wsm.strategies.files.safetensors import (
    PREFIX_BYTES,
    SafetensorsHeader,
    build_header,
    header_length,
    parse_header,
)
from wsm.strategies.files.version_file import parse_version, version_bytes
from wsm.strategies.messages import message_types as bucket_frames
from wsm.strategies.messages.message_types import Frame
from wsm.strategies.mooncake import _lease_messages as mooncake_messages
from wsm.strategies.mooncake._read_plan import MemoryRegion, Placed, TransferLayout
from wsm.strategies.snapshot.manifest import PartMetadata
from wsm.strategies.tensor import TensorSpec

_SPECS = (TensorSpec("a", "F32", (2, 4)), TensorSpec("b", "BF16", (3,)), TensorSpec("c", "I64", ()))
_METADATA = PartMetadata("3", 0, 2, "p")


def all_formats() -> Mapping[str, Format]:
    """Return every format by its name."""
    formats = [
        _header(),
        _metadata(),
        _version(),
        _bucket_message(),
        _mooncake_message(),
        _frame(),
        _block(),
        *sealed_formats(),
        *text_formats(),
        command_line(),
        http_request(),
    ]
    return {form.name: form for form in formats}


def _header() -> Format:
    """A file's head and as many bytes of data as its first two bytes say."""

    def dress(drawn: bytes) -> bytes:
        data, text = bytes(int.from_bytes(drawn[:2], "little")), drawn[2:]
        return len(text).to_bytes(PREFIX_BYTES, "little") + text + data

    def decode(data: bytes) -> SafetensorsHeader:
        length = header_length(data[:PREFIX_BYTES], file="fuzzed", file_bytes=len(data))
        return parse_header(data[PREFIX_BYTES : PREFIX_BYTES + length], file="fuzzed", file_bytes=len(data))

    def encode(header: SafetensorsHeader) -> bytes:
        return build_header(header.specs, header.metadata) + bytes(header.data_bytes)

    def same(header: SafetensorsHeader) -> tuple[Any, ...]:
        return (header.specs, header.begins, dict(header.metadata), header.data_bytes)

    nbytes = sum(spec.nbytes for spec in _SPECS)
    sample = nbytes.to_bytes(2, "little") + build_header(_SPECS, _METADATA.encode())[PREFIX_BYTES:]
    return Format(
        name="safetensors header",
        reader=parse_header,
        decode=lambda data: _Read(decode(data), same),
        encode=lambda read: encode(read.value),
        samples=(sample,),
        dress=dress,
    )


class _Read:
    """A value that equals another in what counts."""

    def __init__(self, value: Any, same: Any) -> None:
        self.value = value
        self._facts = same(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Read) and self._facts == other._facts

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up

    def __repr__(self) -> str:
        return repr(self._facts)


def _metadata() -> Format:
    def decode(data: bytes) -> PartMetadata | None:
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = {}
        pairs = fields.items() if isinstance(fields, dict) else ()
        texts = {key: value for key, value in pairs if isinstance(value, str)}
        return PartMetadata.decode(texts, file="fuzzed")

    return Format(
        name="part metadata",
        reader=PartMetadata.decode,
        decode=decode,
        encode=lambda value: json.dumps({} if value is None else value.encode()).encode(),
        samples=(json.dumps(_METADATA.encode()).encode(),),
    )


def _version() -> Format:
    return Format(
        name="version.yaml",
        reader=parse_version,
        decode=partial(parse_version, file="fuzzed"),
        encode=version_bytes,
        samples=(b"step: 7\n", b"---\n# newest\nstep: '12'\nother: [1, {a: b}]\n"),
    )


def _in_a_frame(drawn: bytes) -> bytes:
    """Take kind and stream from the first bytes, the body from the rest, and make the envelope right."""
    head = bucket_frames._HEAD.pack(  # the envelope's own layout
        bucket_frames.MAGIC, bucket_frames.PROTOCOL, (drawn[:1] or b"\0")[0], 0, max(len(drawn) - 1, 0), 7
    )
    return head + bytes.fromhex(digest_of(head + drawn[1:])) + drawn[1:]


def _bucket_message() -> Format:
    say = bucket_messages
    messages = (
        say.Init("a:3", 0, 2, "p", "wsm-buckets.x", 1 << 13, 1 << 12, _SPECS),
        say.Hello(0, 2, "3", False),
        say.Bucket(0, (digest_of(b""),)),
        say.Abort("failed", "DigestMismatchError", "it is corrupt", 3),
    )
    return Format(
        name="bucket message",
        reader=say.from_bytes,
        decode=partial(say.from_bytes, peer="a peer"),
        encode=lambda read: say.to_bytes(read[1], read[0]),
        samples=tuple(_out_of_its_frame(say.to_bytes(message, 7)) for message in messages),
        dress=_in_a_frame,
        errors=(BadInputError, GroupError),
    )


def _mooncake_message() -> Format:
    say = mooncake_messages
    digests = (digest_of(b""),) * len(_SPECS)
    placed = tuple(Placed(spec, 0, 64 * index) for index, spec in enumerate(_SPECS))
    grant = say.Grant(
        version="3",
        rank=0,
        world_size=2,
        publisher=digests[0],
        session="127.0.0.1:1234",
        lease_ms=1000,
        layout_digest=digests[0],
        layout=TransferLayout((MemoryRegion(1 << 12, 1 << 12),), placed),
        digests=digests,
        shards=digests[:2],
    )
    messages = (grant, say.Ask(0, 2, None, look=False, known_layout=None), say.Refuse("version", "no", "2"))
    return Format(
        name="mooncake message",
        reader=say.from_bytes,
        decode=partial(say.from_bytes, peer="a peer"),
        encode=say.to_bytes,
        samples=tuple(_out_of_its_frame(say.to_bytes(message)) for message in messages),
        dress=_in_a_frame,
        errors=(BadInputError, GroupError),
    )


def _out_of_its_frame(data: bytes) -> bytes:
    return bytes([bucket_frames.decode(data, peer="x").kind]) + data[bucket_frames.HEADER_BYTES :]


def _frame() -> Format:
    return Format(
        name="bucket frame, bare",
        reader=bucket_frames.decode,
        decode=partial(bucket_frames.decode, peer="a peer"),
        encode=bucket_frames.encode,
        samples=(bucket_frames.encode(Frame(1, 7, {"a": [1]})),),
        errors=(BadInputError, GroupError),
    )


class _Changed(NamedTuple):
    """What a block of a delta makes of zeros, in elements of how many bytes."""

    item: int
    content: bytes


def _block() -> Format:
    """One block of a delta: kind, item size, length, decoded length, then its bytes in the file."""

    def decode(data: bytes) -> _Changed:
        if len(data) < 6:
            raise BlockError("no block")
        item = 1 << data[1] % 4
        length = int.from_bytes(data[2:4], "little") // item * item
        block = Block(BlockKind(data[0] % len(BlockKind)), len(data) - 6, int.from_bytes(data[4:6], "little"))
        problem = table_problem([block], nbytes=length, block_bytes=1 << 16, item=item)
        if problem or not length:
            raise BlockError(str(problem))
        content = bytearray(length)
        if block.kind is not BlockKind.SAME:
            unfold(block, data[6:], length=length, item=item).apply(memoryview(content), 0)
        return _Changed(item, bytes(content))

    def encode(changed: _Changed) -> bytes:
        zeros = memoryview(bytes(len(changed.content)))
        block, data = fold(zeros, memoryview(changed.content), changed.item)
        head = bytes([block.kind, changed.item.bit_length() - 1])
        head += len(changed.content).to_bytes(2, "little") + block.decoded.to_bytes(2, "little")
        return head + bytes(data)

    changes = (bytes(16), bytes(15) + b"\1", bytes(range(64)), bytes(40) + b"\1" + bytes(983))
    return Format(
        name="delta block",
        reader=unfold,
        decode=decode,
        encode=encode,
        samples=tuple(encode(_Changed(item, content)) for item in (1, 4) for content in changes),
        errors=(BlockError,),
    )
