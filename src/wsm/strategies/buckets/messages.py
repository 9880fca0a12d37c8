"""What trainer and rank say to each other about a stream of buckets. Pure: values in, values out.

=========  ===============  =================================================================
message    from             means
=========  ===============  =================================================================
Hello      rank             I am this rank and want this version (or whichever you have)
Init       trainer          this is what will come, and the memory that it will come in
Ready      rank             that memory is mapped and what will come fits
Bucket     trainer          bucket i is written; the digests of its pieces
Ack        rank             bucket i is applied and verified; its memory may be written again
End        trainer          that was all, and this is its digest
Done       rank             everything is applied; our digests agree
Abort      either           I give up, and why
=========  ===============  =================================================================

A piece's digest is that of its tensor's bytes from the first one to the end of the piece, so that one pass
over the bytes verifies each piece when it arrives and the whole tensor with its last one.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, get_args

from wsm.strategies.buckets.plan import ALIGNMENT
from wsm.strategies.digest import DIGEST_LENGTH
from wsm.strategies.documents.manifest_fields import is_plain_file_name
from wsm.strategies.documents.strict_json import is_count, is_text
from wsm.strategies.files.version_file import MAX_VERSION
from wsm.strategies.messages import frames
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

#: Why somebody gives up; ``failed`` comes with an error of their own.
REASONS = ("failed", "version", "rank", "world_size", "busy", "cancelled")

_MAX_COUNT = (1 << 63) - 1
_MAX_SLOTS = 1 << 10
_MAX_TEXT = 1 << 16
_MAX_BUCKETS = 1 << 22
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Hello:
    """A rank asks for a stream; `look` if it wants to see the Init only. None means that it does not say."""

    rank: int
    world_size: int | None
    version: int | None
    look: bool


@dataclass(frozen=True)
class Init:
    """What a stream will consist of, and the shared memory of `slots` buckets that it comes in."""

    version: int
    rank: int
    world_size: int
    publication: str
    segment: str
    slots: int
    bucket_bytes: int
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Ready:
    """The memory is mapped."""


@dataclass(frozen=True)
class Bucket:
    """Bucket `index` lies in slot ``index % slots``; `digests` has one entry per piece."""

    index: int
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Ack:
    """Bucket `index` is applied."""

    index: int


@dataclass(frozen=True)
class End:
    """All `buckets` were sent; `content_digest` is that of all tensors."""

    buckets: int
    content_digest: str


@dataclass(frozen=True)
class Done:
    """All is applied."""

    content_digest: str


@dataclass(frozen=True)
class Abort:
    """Somebody gives up: one of :data:`REASONS`, their error's type and text, and what they have instead."""

    reason: str
    error: str
    text: str
    found: int | None = None


Message: TypeAlias = Hello | Init | Ready | Bucket | Ack | End | Done | Abort
MessageT = TypeVar("MessageT", Hello, Init, Ready, Bucket, Ack, End, Done, Abort)

_KINDS: dict[int, type[Any]] = dict(enumerate(get_args(Message), start=1))
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def to_bytes(message: Message, session: int) -> bytes:
    """Return the bytes that say `message` in the stream `session`."""
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    if isinstance(message, Init):
        fields["tensors"] = [[spec.name, spec.dtype, list(spec.shape)] for spec in message.tensors]
    return frames.encode(frames.Frame(_NUMBERS[type(message)], session, fields))


def from_bytes(data: bytes, *, peer: str) -> tuple[int, Message]:
    """Return the stream that a message belongs to, and the message.

    Raises
    ------
    PeerMessageError
        If the bytes are no message. Any bytes give this or a message that can be relied on as far as its
        own fields go.
    """
    frame = frames.decode(data, peer=peer)
    kind = _KINDS.get(frame.kind)
    if kind is None:
        raise PeerMessageError(peer=peer, problem=f"its kind is {frame.kind}, which is none")
    names = [field.name for field in dataclasses.fields(kind)]
    if set(frame.fields) != set(names):
        raise PeerMessageError(
            peer=peer, problem=f"a {kind.__name__} has the fields {names}, not {sorted(frame.fields)}"
        )
    values = {name: _value(kind.__name__, name, frame.fields[name], peer) for name in names}
    message = kind(**values)
    if isinstance(message, Init):
        _check_offer(message, peer)
    return frame.session, message


def _check_offer(init: Init, peer: str) -> None:
    """Check what no field of an Init says by itself."""
    if None in (init.version, init.world_size):
        raise PeerMessageError(peer=peer, problem="its Init does not say which version of how many ranks")
    total = sum(spec.nbytes for spec in init.tensors)
    if total // init.bucket_bytes + len(init.tensors) > _MAX_BUCKETS:
        raise PeerMessageError(peer=peer, problem=f"its Init takes more than {_MAX_BUCKETS} buckets")
    names: set[str] = set()
    for spec in init.tensors:
        if spec.name in names:
            raise PeerMessageError(peer=peer, problem=f"its Init lists {spec.name!r} twice")
        names.add(spec.name)


def _value(kind: str, name: str, value: Any, peer: str) -> Any:
    checked = _CHECKS[name](value)
    if checked is _WRONG:
        raise PeerMessageError(peer=peer, problem=f"the field {name} of its {kind} is wrong: {value!r:.100}")
    return checked


_WRONG = object()


def _count(limit: int, least: int = 0) -> Any:
    return lambda value: value if is_count(value) and least <= value <= limit else _WRONG


def _or_none(check: Any) -> Any:
    return lambda value: None if value is None else check(value)


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _WRONG


def _text(value: Any) -> Any:
    return value if is_text(value) and len(value) <= _MAX_TEXT else _WRONG


def _reason(value: Any) -> Any:
    return value if isinstance(value, str) and value in REASONS else _WRONG


def _file_name(value: Any) -> Any:
    return value if is_text(value) and len(value) < 256 and is_plain_file_name(value) else _WRONG


def _digest(value: Any) -> Any:
    fits = isinstance(value, str) and len(value) == DIGEST_LENGTH and _HEX.fullmatch(value)
    return value if fits else _WRONG


def _digests(value: Any) -> Any:
    if not isinstance(value, list) or any(_digest(entry) is _WRONG for entry in value):
        return _WRONG
    return tuple(value)


def _bucket_bytes(value: Any) -> Any:
    return value if is_count(value) and value and value % ALIGNMENT == 0 and value <= _MAX_COUNT else _WRONG


def _tensors(value: Any) -> Any:
    if not isinstance(value, list):
        return _WRONG
    specs = []
    for row in value:
        if not isinstance(row, list) or len(row) != 3:
            return _WRONG
        name, dtype, shape = row
        if not is_text(name) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            return _WRONG
        if not isinstance(shape, list) or not all(map(is_count, shape)):
            return _WRONG
        specs.append(TensorSpec(name, dtype, tuple(shape)))
    return tuple(specs) if sum(spec.nbytes for spec in specs) <= _MAX_COUNT else _WRONG


_CHECKS: dict[str, Any] = {
    "rank": _count(_MAX_COUNT),
    "world_size": _or_none(_count(_MAX_COUNT, least=1)),
    "version": _or_none(_count(MAX_VERSION)),
    "look": _flag,
    "publication": _text,
    "segment": _file_name,
    "slots": _count(_MAX_SLOTS, least=1),
    "bucket_bytes": _bucket_bytes,
    "tensors": _tensors,
    "index": _count(_MAX_COUNT),
    "digests": _digests,
    "buckets": _count(_MAX_COUNT),
    "content_digest": _digest,
    "reason": _reason,
    "error": _text,
    "text": _text,
    "found": _or_none(_count(_MAX_COUNT)),
}
