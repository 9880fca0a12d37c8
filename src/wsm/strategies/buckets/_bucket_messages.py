"""What trainer and rank say to each other about a stream of buckets. Pure: values in, values out.

=========  ===============  =================================================================
message    from             means
=========  ===============  =================================================================
Hello      rank             I am this rank and want this version (or whichever you have)
Init       trainer          this is what will come, and the memory that it will come through
Ready      rank             that memory is mapped, and says in itself that it is for this stream
Bucket     trainer          bucket i is written; the digests of its pieces
Ack        rank             bucket i is applied and verified
End        trainer          that was all, and this is its digest
Done       rank             everything is applied; our digests agree
Abort      either           I give up, and why
=========  ===============  =================================================================

The bytes are ahead of these messages: how far each side is, marks say
(:mod:`wsm.strategies.buckets._bucket_plan`). A piece's digest is that of its tensor's bytes from the first
one to the end of the piece, so that one pass over the bytes verifies each piece when it is there and the
whole tensor with its last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, get_args

from wsm.strategies.buckets._bucket_plan import ALIGNMENT, MAX_BUCKETS, fewest_bytes
from wsm.strategies.messages import fields
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.messages.message_types import MessageTypes
from wsm.strategies.tensor import TensorSpec

#: Why a peer gives up; ``failed`` comes with an error of their own.
REASONS = ("failed", "version", "rank", "world_size", "busy", "cancelled")


@dataclass(frozen=True)
class Hello:
    """A rank asks for a stream; `look` if it wants to see the Init only. None means that it does not say."""

    rank: int
    world_size: int | None
    version: str | None
    look: bool


@dataclass(frozen=True)
class Init:
    """What a stream will consist of, and the shared memory of a window that it comes through.

    `finite` promises that there is neither NaN nor infinity in it.
    """

    version: str
    rank: int
    world_size: int
    publication: str
    segment: str
    window_bytes: int
    bucket_bytes: int
    tensors: tuple[TensorSpec, ...]
    finite: bool = False


@dataclass(frozen=True)
class Ready:
    """The memory is mapped."""


@dataclass(frozen=True)
class Bucket:
    """Bucket `index` is written; `digests` has one entry per piece."""

    index: int
    digests: tuple[str, ...]


@dataclass(frozen=True)
class Ack:
    """Bucket `index` is applied and verified."""

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
    """The peer gives up: one of :data:`REASONS`, their error's type and text, and what they have instead."""

    reason: str
    error: str
    text: str
    found: int | str | None = None


Message: TypeAlias = Hello | Init | Ready | Bucket | Ack | End | Done | Abort
MessageT = TypeVar("MessageT", Hello, Init, Ready, Bucket, Ack, End, Done, Abort)

_KINDS: dict[int, type[Any]] = dict(enumerate(get_args(Message), start=1))


def to_bytes(message: Message, session: int) -> bytes:
    """Return the bytes that say `message` in the stream `session`."""
    body = body_of(message)
    return envelope(message, session, body) + body


def body_of(message: Message) -> bytes:
    """Return a message's body, the same in every stream: that of an Init is long, and may be said to many."""
    if isinstance(message, Init):
        return _WORDS.encode_body(message, tensors=[fields.spec_row(spec) for spec in message.tensors])
    return _WORDS.encode_body(message)


def envelope(message: Message, session: int, body: bytes) -> bytes:
    """Return what stands before the body when `message` is said in the stream `session`."""
    return _WORDS.envelope(message, session, body)


def from_bytes(data: bytes, *, peer: str) -> tuple[int, Message]:
    """Return the stream that a message belongs to, and the message.

    Raises
    ------
    PeerMessageError
        If the bytes are no message. Any bytes give this or a message that can be relied on as far as its
        own fields go.
    """
    session, message = _WORDS.decode(data, peer=peer)
    if isinstance(message, Init):
        _check_offer(message, peer)
    return session, message


def _check_offer(init: Init, peer: str) -> None:
    """Check what no field of an Init says by itself."""
    if None in (init.version, init.world_size):
        raise PeerMessageError(peer=peer, problem="its Init does not say which version of how many ranks")
    fewest = fewest_bytes(init.tensors)
    if init.bucket_bytes < fewest:
        raise PeerMessageError(
            peer=peer,
            problem=f"its Init cuts a version into more than {MAX_BUCKETS} buckets of {init.bucket_bytes} "
            f"bytes, which may not be smaller than {fewest} bytes for it",
        )
    names: set[str] = set()
    for spec in init.tensors:
        if spec.name in names:
            raise PeerMessageError(peer=peer, problem=f"its Init lists {spec.name!r} twice")
        names.add(spec.name)


def _tensors(value: Any) -> Any:
    if not isinstance(value, list):
        return fields.WRONG
    specs = [fields.spec(row) for row in value]
    fits = fields.WRONG not in specs and sum(spec.nbytes for spec in specs) <= fields.MAX_COUNT
    return tuple(specs) if fits else fields.WRONG


_WORDS = MessageTypes(
    _KINDS,
    {
        "rank": fields.count(),
        "world_size": fields.or_none(fields.count(least=1)),
        "version": fields.or_none(fields.version),
        "look": fields.flag,
        "finite": fields.flag,
        "publication": fields.name,
        "segment": fields.file_name,
        "window_bytes": fields.count(least=ALIGNMENT, multiple_of=ALIGNMENT),
        "bucket_bytes": fields.count(least=1, multiple_of=ALIGNMENT),
        "tensors": _tensors,
        "index": fields.count(),
        "digests": fields.digests,
        "buckets": fields.count(),
        "content_digest": fields.digest,
        "reason": fields.one_of(REASONS),
        "error": fields.text,
        "text": fields.text,
        "found": fields.or_none(fields.version_or_count),
    },
)
