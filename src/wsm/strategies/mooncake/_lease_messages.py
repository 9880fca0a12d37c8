"""What a rank and a publisher say to each other about a version in registered memory, and where.

=========  ===========  ======================================================================
message    from         means
=========  ===========  ======================================================================
Ask        rank         I am this rank and want this version (or whichever you have)
Grant      publisher    here it lies, and there it stays as long as this connection
Abort      publisher    you get nothing (``busy``: no version yet), or the lease is over; and why
=========  ===========  ======================================================================

A connection is the lease: a rank that closes it has let go. A message is the length of its body (4 bytes,
big-endian), and its frame (:mod:`wsm.strategies.conversation`): the body's digest and its body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from wsm.errors import BadInputError
from wsm.strategies import conversation
from wsm.strategies.conversation import Abort, PeerMessage, Place, Wanted, frame_of, message_in
from wsm.strategies.peer_errors import peer_message
from wsm.strategies.promise import Count, Digest, Publication, ShardPromise
from wsm.typed import resolved

#: The longest body to a publisher, and to a rank: a Grant of half a million tensors.
MOST_TO_PUBLISHER, MOST_TO_RANK = 1 << 12, 1 << 27

_LENGTH = struct.Struct("!I")
LENGTH_BYTES = _LENGTH.size


class MemoryRegion(NamedTuple):
    """Memory that the publisher's engine lets us read: address and bytes."""

    address: Count
    nbytes: Count


class Ask(Wanted, frozen=True):
    """A rank asks."""


class Grant(PeerMessage, frozen=True):
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


FromPublisher: TypeAlias = Grant | Abort

#: Return what the other side says in a frame; peer_message if the bytes are none of its messages.
ask_of: Callable[[bytes], Ask] = partial(message_in, msgspec.json.Decoder(resolved(Ask)), peer="a rank")
answer_of: Callable[[bytes, str], FromPublisher] = partial(
    message_in, msgspec.json.Decoder(resolved(FromPublisher))
)


def to_bytes(message: Ask | FromPublisher) -> bytes:
    """Return the bytes that say `message`."""
    frame = frame_of(message)
    return _LENGTH.pack(len(frame) - conversation.HEAD_BYTES) + frame


def frame_bytes(length: bytes, most: int, peer: str) -> int:
    """Return how long the frame behind its length is; peer_message if its body is too long."""
    body: int = _LENGTH.unpack(length)[0]
    if body > most:
        raise peer_message(peer=peer, problem=f"it announces {body} bytes, {most} are the most")
    return conversation.HEAD_BYTES + body


def check_grant(grant: Grant, peer: str) -> None:
    """Compare what a Grant promises with the publication and with where it lies; peer_message if not."""
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
        raise peer_message(peer=peer, problem=f"its Grant {problem}")


def _misplaced(grant: Grant) -> str | None:
    for (spec, _, _), (region, offset) in zip(grant.promise.tensors, grant.places, strict=True):
        held = grant.regions[region].nbytes if region < len(grant.regions) else 0
        if spec.nbytes and offset + spec.nbytes > held:
            return f"puts {spec.name!r} outside of the memory that it names"
    return None


def place_of(address: str) -> Place:
    """Return the path of ``ipc:///absolute/path``, or host and port of ``tcp://IPv4:port`` (port 0: any).

    Raises
    ------
    BadInputError
        If it is neither.
    """
    place = conversation.place_in(address)
    try:
        if isinstance(place, tuple):
            IPv4Address(place[0])
    except ValueError:
        place = None
    if place is None:
        raise BadInputError(
            f"mooncake: address {address!r} is neither tcp://IPv4:port nor ipc:///absolute/path of at most "
            "107 bytes",
            code="bad-engine-settings",
            field="address",
            value=address,
        )
    return place
