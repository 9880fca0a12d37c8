"""What a rank and a publisher say to each other about a version in registered memory, and where.

=========  ===========  ======================================================================
message    from         means
=========  ===========  ======================================================================
Ask        rank         I am this rank and want this version (or whichever you have)
Grant      publisher    here it lies, and there it stays as long as this connection
Refuse     publisher    you get nothing, and why
Revoked    publisher    the lease is over, and why
=========  ===========  ======================================================================

A connection is the lease: a rank that closes it has let go. A message is the length of its body (4 bytes,
big-endian), the body's xxh3-128 digest (16 bytes), and its body, a JSON object.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from wsm.errors import BadInputError
from wsm.labels import Label
from wsm.strategies.digest import digest_of
from wsm.strategies.mooncake._read_plan import MemoryRegion, Placed, TransferLayout
from wsm.strategies.peer_errors import PeerMessageError
from wsm.strategies.tensor import TensorSpec

_TCP = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
#: The longest body to a publisher, and to a rank: a Grant of half a million tensors.
MOST_TO_PUBLISHER, MOST_TO_RANK = 1 << 12, 1 << 27

_HEAD = struct.Struct("!I16s")
HEAD_BYTES = _HEAD.size

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Ranks: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
#: Name, dtype and shape of a tensor, its region, and where it begins there.
PlacedRow: TypeAlias = tuple[str, str, tuple[_Number, ...], _Number, _Number]


class _LeaseMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower):
    pass


class Ask(_LeaseMessage, frozen=True):
    """A rank asks; `look` if it will not read."""

    rank: _Number
    world_size: _Ranks | None
    version: Label | None
    look: bool


class Grant(_LeaseMessage, frozen=True):
    """One rank's shard in the memory of the engine `session`.

    `publisher` is another for every publisher that ever was; `digests` has one entry per tensor, `shards` one
    per rank; `finite` promises that there is neither NaN nor infinity.
    """

    version: Label
    rank: _Number
    world_size: _Ranks
    publisher: _Digest
    session: Annotated[str, msgspec.Meta(pattern=r"\A[0-9.]{7,15}:[0-9]{1,5}\Z")]
    regions: tuple[tuple[_Number, _Number], ...]
    tensors: tuple[PlacedRow, ...]
    digests: tuple[_Digest, ...]
    shards: tuple[_Digest, ...]
    finite: bool = False


class Refuse(_LeaseMessage, frozen=True):
    """The rank gets nothing, and what there is instead; ``empty``: there is no version (yet)."""

    reason: Literal["empty", "version", "rank", "world_size"]
    text: str
    found: Label | _Number | None = None


class Revoked(_LeaseMessage, frozen=True):
    """The memory will be written."""

    text: str


_T = TypeVar("_T")
FromPublisher: TypeAlias = Grant | Refuse | Revoked

_TO_PUBLISHER = msgspec.json.Decoder(Ask)
_TO_RANK: msgspec.json.Decoder[FromPublisher] = msgspec.json.Decoder(FromPublisher)


def to_bytes(message: Ask | FromPublisher) -> bytes:
    """Return the bytes that say `message`."""
    body = msgspec.json.encode(message)
    return _HEAD.pack(len(body), bytes.fromhex(digest_of(body))) + body


def length_of(head: bytes, most: int, peer: str) -> int:
    """Return how long the body behind a head of :data:`HEAD_BYTES` is; PeerMessageError if too long."""
    length: int = _HEAD.unpack(head)[0]
    if length > most:
        raise PeerMessageError(peer=peer, problem=f"it announces {length} bytes, {most} are the most")
    return length


def ask_of(head: bytes, body: bytes) -> Ask:
    """Return what a rank says; PeerMessageError if the bytes are none of its messages."""
    return _decode(_TO_PUBLISHER, head, body, "a rank")


def answer_of(head: bytes, body: bytes, peer: str) -> FromPublisher:
    """Return what a publisher says; PeerMessageError if the bytes are none of its messages."""
    return _decode(_TO_RANK, head, body, peer)


def _decode(decoder: msgspec.json.Decoder[_T], head: bytes, body: bytes, peer: str) -> _T:
    if digest_of(body) != head[4:].hex():
        raise PeerMessageError(peer=peer, problem="it was damaged on the way, its digest does not match")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerMessageError(peer=peer, problem=str(error)) from error


def layout_of(grant: Grant, peer: str) -> TransferLayout:
    """Return where the tensors of a Grant lie; PeerMessageError if its fields do not fit each other."""
    problem = None
    if len(grant.shards) != grant.world_size or grant.rank >= grant.world_size:
        problem = f"its Grant is for rank {grant.rank} of {grant.world_size} and lists {len(grant.shards)}"
    elif len(grant.digests) != len(grant.tensors):
        problem = f"its Grant has {len(grant.tensors)} tensors and {len(grant.digests)} digests"
    placed: dict[str, Placed] = {}
    for name, dtype, shape, region, offset in grant.tensors:
        try:
            spec = TensorSpec(name, dtype, shape)
        except BadInputError as error:
            raise PeerMessageError(peer=peer, problem=f"its tensors: {error}") from error
        if name in placed:
            problem = f"its Grant lists {name!r} twice"
        elif spec.nbytes and (
            region >= len(grant.regions) or offset + spec.nbytes > grant.regions[region][1]
        ):
            problem = f"its Grant puts {name!r} outside of the memory that it names"
        placed[name] = Placed(spec, region, offset)
    if problem is not None:
        raise PeerMessageError(peer=peer, problem=problem)
    return TransferLayout(tuple(MemoryRegion(*each) for each in grant.regions), tuple(placed.values()))


def place_of(address: str) -> Path | tuple[str, int]:
    """Return the path of ``ipc:///absolute/path``, or host and port of ``tcp://IPv4:port`` (port 0: any).

    Raises
    ------
    BadInputError
        If it is neither.
    """
    path = address.removeprefix("ipc://")
    if path != address and path.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH:
        return Path(path)
    found = _TCP.fullmatch(address)
    if found is None or int(found[2]) > 0xFFFF:
        raise BadInputError(
            f"mooncake: address {address!r} is neither tcp://IPv4:port nor ipc:///absolute/path of at most "
            f"{_LONGEST_PATH} bytes",
            code="bad-engine-settings",
            field="address",
            value=address,
        )
    return found[1], int(found[2])


def socket_for(place: Path | tuple[str, int]) -> socket.socket:
    """Make a socket of the family of a place."""
    family = socket.AF_UNIX if isinstance(place, Path) else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM)
