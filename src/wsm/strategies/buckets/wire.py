"""What a trainer and a rank say to each other over a stream of buckets. Pure: values in, values out.

=========  ===============  =================================================================
message    from             means
=========  ===============  =================================================================
Hello      rank             I am this rank and want this version, or whichever you send
Init       trainer          this version will come, through this shared memory
Ready      rank             the memory is mapped and leased
Bucket     trainer          bucket `number` is written; where its tensors lie, and their digests
Ack        rank             bucket `number` is applied and verified: its memory may be written again
Done       rank             everything is applied, with this digest
End        trainer          both digests agree; the stream is over
Abort      either           the stream ends, and why; the trainer answers a rank's Abort with one
=========  ===============  =================================================================

One message is one frame (:mod:`wsm.strategies.conversation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeAlias

import msgspec

from wsm.errors import WsmError, error_name
from wsm.labels import Label
from wsm.strategies.conversation import Abort, PeerMessage, Ranks, ShortWord, Wanted, message_in
from wsm.strategies.promise import Count, Dtype, Extents
from wsm.strategies.tensor import ALIGNMENT, TensorSpec, aligned
from wsm.typed import resolved

#: What the name of the memory of buckets begins with; no other memory is attached, whichever peer names it.
SEGMENT_PREFIX = "wsm-buckets."
#: The longest message to a trainer, and to a rank: an Init of half a million tensors.
MOST_TO_TRAINER, MOST_TO_RANK = 1 << 16, 1 << 26

_Segment: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\Awsm-buckets\.[0-9a-f]{16}\Z")]

#: Name, dtype and shape of a tensor.
SpecRow: TypeAlias = tuple[str, Dtype, Extents]
#: Name, dtype, shape, offset in the bucket, and the digest of the tensor's bytes up to the end of this piece.
PieceRow: TypeAlias = tuple[str, str, tuple[Count, ...], Count, str]


class Hello(Wanted, frozen=True):
    """A rank asks for a stream; with `look` for the Init only."""


class Init(PeerMessage, frozen=True):
    """What a stream will consist of: tensors in their order, through `slots` buckets of memory at a time."""

    version: Label
    rank: Count
    world_size: Ranks
    publication: ShortWord
    segment: _Segment
    bucket_bytes: Annotated[int, msgspec.Meta(ge=ALIGNMENT, le=1 << 40, multiple_of=ALIGNMENT)]
    slots: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    finite: bool
    tensors: tuple[SpecRow, ...] = ()


class Ready(PeerMessage, frozen=True):
    """The memory is leased."""


class Bucket(PeerMessage, frozen=True):
    """Bucket `number` lies in slot ``number % slots``."""

    number: Count
    tensors: tuple[PieceRow, ...]


class Ack(PeerMessage, frozen=True):
    """Bucket `number` is applied and verified."""

    number: Count


class Done(PeerMessage, frozen=True):
    """All `buckets` are applied; `digest` is that of all tensors."""

    buckets: Count
    digest: str


class End(PeerMessage, frozen=True):
    """The trainer sent what the rank has."""

    digest: str


FromRank: TypeAlias = Hello | Ready | Ack | Done | Abort
FromTrainer: TypeAlias = Init | Bucket | End | Abort

#: Return what the other side says in a frame; peer_message if the bytes are none of its messages.
from_rank: Callable[[bytes, str], FromRank] = partial(message_in, msgspec.json.Decoder(resolved(FromRank)))
from_trainer: Callable[[bytes, str], FromTrainer] = partial(
    message_in, msgspec.json.Decoder(resolved(FromTrainer))
)


def abort_of(error: BaseException) -> Abort:
    """Return what a peer hears of an error."""
    text = str(error) if isinstance(error, WsmError) else repr(error)
    return Abort("failed", error_name(error), text[:2000].encode(errors="replace").decode())


@dataclass(frozen=True)
class Piece:
    """Bytes `begin` to `end` of the tensor at position `tensor`; they lie at `offset` in their bucket."""

    tensor: int
    begin: int
    end: int
    offset: int


def cut(specs: Sequence[TensorSpec], bucket_bytes: int) -> Iterator[list[Piece]]:
    """Cut tensors into buckets, in their order.

    A tensor that fits lies in one bucket whole. A larger one begins a bucket and goes on in the next ones.
    Tensors without bytes are in none.
    """
    pieces: list[Piece] = []
    place = 0
    for index, spec in enumerate(specs):
        for begin in range(0, spec.nbytes, bucket_bytes):
            length = min(spec.nbytes - begin, bucket_bytes)
            if pieces and place + length > bucket_bytes:
                yield pieces
                pieces, place = [], 0
            pieces.append(Piece(index, begin, begin + length, place))
            place += aligned(length)
    if pieces:
        yield pieces
