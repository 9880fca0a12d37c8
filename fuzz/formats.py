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
from wsm.errors import BadInputError
from wsm.strategies.buckets import wire
from wsm.strategies.conversation import HEAD_BYTES, Abort, frame_of, message_in
from wsm.strategies.delta._blocks import Block, BlockKind, table_problem
from wsm.strategies.delta._codec import BlockError
from wsm.strategies.delta._codec import decode as unfold
from wsm.strategies.delta._codec import encode as fold
from wsm.strategies.digest import digest_of
from wsm.strategies.files.safetensors import (
    PREFIX_BYTES,
    SafetensorsHeader,
    header_length,
    lay_out,
    parse_header,
)
from wsm.strategies.files.version_file import parse_version, version_bytes
from wsm.strategies.mooncake import _lease_messages as mooncake_messages
from wsm.strategies.mooncake._lease_messages import MemoryRegion
from wsm.strategies.mooncake.publisher import PlacedShard, grants_of
from wsm.strategies.promise import PromisedTensor, ShardIdentity
from wsm.strategies.snapshot.manifest import identity_of_part, part_metadata
from wsm.strategies.tensor import TensorSpec

_SPECS = (TensorSpec("a", "F32", (2, 4)), TensorSpec("b", "BF16", (3,)), TensorSpec("c", "I64", ()))
_IDENTITY = ShardIdentity(version="3", rank=0, world_size=2, publication="p")


def all_formats() -> Mapping[str, Format]:
    """Return every format by its name."""
    formats = [
        _header(),
        _metadata(),
        _version(),
        _to_trainer(),
        _to_rank(),
        _ask(),
        _answer(),
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
        return lay_out(header.specs, header.metadata)[0] + bytes(header.data_bytes)

    def same(header: SafetensorsHeader) -> tuple[Any, ...]:
        return (header.specs, header.begins, dict(header.metadata), header.data_bytes)

    nbytes = sum(spec.nbytes for spec in _SPECS)
    sample = nbytes.to_bytes(2, "little") + lay_out(_SPECS, part_metadata(_IDENTITY))[0][PREFIX_BYTES:]
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
    def decode(data: bytes) -> ShardIdentity | None:
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = {}
        pairs = fields.items() if isinstance(fields, dict) else ()
        texts = {key: value for key, value in pairs if isinstance(value, str)}
        return identity_of_part(texts, file="fuzzed")

    return Format(
        name="part metadata",
        reader=identity_of_part,
        decode=decode,
        encode=lambda value: json.dumps({} if value is None else part_metadata(value)).encode(),
        samples=(json.dumps(part_metadata(_IDENTITY)).encode(),),
    )


def _version() -> Format:
    return Format(
        name="version.yaml",
        reader=parse_version,
        decode=partial(parse_version, file="fuzzed"),
        encode=version_bytes,
        samples=(b"step: 7\n", b"---\n# newest\nstep: '12'\nother: [1, {a: b}]\n"),
    )


def _digested(drawn: bytes) -> bytes:
    return bytes.fromhex(digest_of(drawn)) + drawn


def _to_trainer() -> Format:
    messages = (
        wire.Hello(0, 2, "3", look=False),
        wire.Ack(1),
        wire.Done(2, digest_of(b"")),
        Abort("failed", "DigestMismatchError", "it is corrupt", 3),
    )
    return Format(
        name="bucket message to a trainer",
        reader=message_in,
        decode=lambda data: wire.from_rank(data, "a peer"),
        encode=frame_of,
        samples=tuple(frame_of(message)[16:] for message in messages),
        dress=_digested,
        errors=(BadInputError,),
    )


def _to_rank() -> Format:
    rows = tuple((spec.name, spec.dtype, spec.shape) for spec in _SPECS)
    pieces = tuple((*row, 64 * index, digest_of(b"")) for index, row in enumerate(rows))
    segment = f"{wire.SEGMENT_PREFIX}{'0' * 16}"
    messages = (
        wire.Init("a:3", 0, 2, "p", segment, 1 << 12, 2, finite=False, tensors=rows),
        wire.Bucket(0, pieces),
        wire.End(digest_of(b"")),
    )
    return Format(
        name="bucket message to a rank",
        reader=message_in,
        decode=lambda data: wire.from_trainer(data, "a peer"),
        encode=frame_of,
        samples=tuple(frame_of(message)[16:] for message in messages),
        dress=_digested,
        errors=(BadInputError,),
    )


def _behind_its_head(drawn: bytes) -> bytes:
    return len(drawn).to_bytes(4, "big") + bytes.fromhex(digest_of(drawn)) + drawn


def _ask() -> Format:
    say = mooncake_messages
    cut = say.LENGTH_BYTES + HEAD_BYTES
    return Format(
        name="mooncake question",
        reader=message_in,
        decode=lambda data: say.ask_of(data[say.LENGTH_BYTES :]),
        encode=say.to_bytes,
        samples=(say.to_bytes(say.Ask(0, 2, None, look=False))[cut:],),
        dress=_behind_its_head,
        errors=(BadInputError,),
    )


def _from_publisher(data: bytes) -> mooncake_messages.FromPublisher:
    message = mooncake_messages.answer_of(data[mooncake_messages.LENGTH_BYTES :], "a peer")
    if isinstance(message, mooncake_messages.Grant):
        mooncake_messages.check_grant(message, "a peer")
    return message


def _answer() -> Format:
    say = mooncake_messages
    cut = say.LENGTH_BYTES + HEAD_BYTES
    tensors = tuple(PromisedTensor(spec, digest_of(b"")) for spec in _SPECS)
    places = tuple((0, 64 * index) for index in range(len(_SPECS)))
    shard = PlacedShard(tensors, (MemoryRegion(1 << 12, 1 << 12),), places)
    grants = grants_of("3", {0: shard, 1: shard}, publisher=digest_of(b""), session="127.0.0.1:1234")
    return Format(
        name="mooncake answer",
        reader=message_in,
        decode=_from_publisher,
        encode=say.to_bytes,
        samples=tuple(say.to_bytes(each)[cut:] for each in (grants[0], Abort("version", "old", "no", "2"))),
        dress=_behind_its_head,
        errors=(BadInputError,),
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
        if block.kind is BlockKind.FULL:
            content[:] = data[6:]
        elif block.kind is not BlockKind.SAME:
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
