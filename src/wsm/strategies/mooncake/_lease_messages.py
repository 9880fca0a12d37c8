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
from wsm.strategies.mooncake._read_plan import MemoryRegion
from wsm.strategies.peer_errors import PeerMessageError
from wsm.strategies.promise import Count, Digest, Publication, ShardPromise

_TCP = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
#: The longest body to a publisher, and to a rank: a Grant of half a million tensors.
MOST_TO_PUBLISHER, MOST_TO_RANK = 1 << 12, 1 << 27

_HEAD = struct.Struct("!I16s")
HEAD_BYTES = _HEAD.size

_Ranks: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class _LeaseMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower):
    pass


class Ask(_LeaseMessage, frozen=True):
    """A rank asks; `look` if it will not read."""

    rank: Count
    world_size: _Ranks | None
    version: Label | None
    look: bool


class Grant(_LeaseMessage, frozen=True):
    """One rank's shard, as it is promised, in the memory of the engine `session`.

    `publisher` is another for every publisher that ever was; `places` has for each tensor of the promise in
    which of the regions it lies, and where it begins there.
    """

    promise: ShardPromise
    publication: Publication
    publisher: Digest
    session: Annotated[str, msgspec.Meta(pattern=r"\A[0-9.]{7,15}:[0-9]{1,5}\Z")]
    regions: tuple[MemoryRegion, ...]
    places: tuple[tuple[Count, Count], ...]


class Refuse(_LeaseMessage, frozen=True):
    """The rank gets nothing, and what there is instead; ``empty``: there is no version (yet)."""

    reason: Literal["empty", "version", "rank", "world_size"]
    text: str
    found: Label | Count | None = None


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


def check_grant(grant: Grant, peer: str) -> None:
    """Compare what a Grant promises with the publication and with where it lies; PeerMessageError if not."""
    promise, publication = grant.promise, grant.publication
    problem = None
    if promise.rank >= publication.world_size or promise.world_size != publication.world_size:
        problem = f"is for rank {promise.rank} of {promise.world_size} and lists {publication.world_size}"
    elif (promise.version, promise.publication) != (publication.version, publication.publication):
        problem = f"is of version {promise.version} of another publication"
    elif len(grant.places) != len(promise.rows):
        problem = f"has {len(promise.rows)} tensors and {len(grant.places)} places"
    elif promise.rows:
        try:
            promise.check()
        except msgspec.ValidationError as error:
            problem = f"promises what cannot be: {error}"
    if problem is None and promise.content_digest != publication.shards[promise.rank].content_digest:
        problem = "has digests that do not add up to that of the shard"
    problem = problem or _misplaced(grant)
    if problem is not None:
        raise PeerMessageError(peer=peer, problem=f"its Grant {problem}")


def _misplaced(grant: Grant) -> str | None:
    for (spec, _, _), (region, offset) in zip(grant.promise.tensors, grant.places, strict=True):
        held = grant.regions[region].nbytes if region < len(grant.regions) else 0
        if spec.nbytes and offset + spec.nbytes > held:
            return f"puts {spec.name!r} outside of the memory that it names"
    return None


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
