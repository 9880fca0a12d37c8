"""What a rank and a publisher say to each other about a version in registered memory, and where.

=========  ===========  ======================================================================
message    from         means
=========  ===========  ======================================================================
Ask        rank         I am this rank and want this version (or whichever you have)
Grant      publisher    here it lies, and there it stays as long as you renew your lease
Renew      rank         I am still reading
Held       publisher    your lease is renewed
Release    rank         I read no more: all is applied and verified, or this error ended it
Released   publisher    whether the lease was held until now
Refuse     publisher    you get nothing, and why
Revoked    publisher    the lease is over at once, and why
=========  ===========  ======================================================================

Addresses are those at which ranks ask. A connection is one lease: a rank that closes it has let go. The
envelope is that of :mod:`wsm.strategies.messages.message_types`; a Grant leaves out a layout whose digest the
rank said it knows.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from wsm.strategies.messages import fields
from wsm.strategies.messages.connection import Place
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.messages.listener import Listener, listen_at
from wsm.strategies.messages.message_types import MessageTypes
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake._read_plan import MemoryRegion, Placed, TransferLayout

_TCP = re.compile(r"tcp://([0-9.]{7,15}):([0-9]{1,5})")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH = 107
# Ranks may be on many hosts.
_MOST_CONNECTIONS = 1 << 10


def parse_address(address: str) -> Place:
    """Return what a socket takes for ``ipc:///absolute/path`` or ``tcp://IPv4:port`` (port 0: any).

    Raises
    ------
    BadInputError
        If it is neither.
    """
    path = address.removeprefix("ipc://")
    if path != address and path.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH:
        return socket.AF_UNIX, path
    found = _TCP.fullmatch(address)
    if found is None or int(found[2]) > 0xFFFF:
        raise mooncake_errors.bad_engine_settings(
            field="address",
            value=address,
            problem=f"is neither tcp://IPv4:port nor ipc:///absolute/path of at most {_LONGEST_PATH} bytes",
        )
    return socket.AF_INET, (found[1], int(found[2]))


def listen(address: str) -> Listener:
    """Listen for ranks.

    Raises
    ------
    BadInputError
        If the address is none.
    RefusedError
        If another process listens there.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    return listen_at(parse_address(address), address, most_connections=_MOST_CONNECTIONS)


#: Why a publisher gives nothing; ``empty``: there is no version (yet).
REASONS = ("empty", "version", "rank", "world_size", "failed")

# Kinds of frames; those of the buckets' messages are below.
_FIRST_KIND = 64
_SESSION = re.compile(r"[0-9.]{7,15}:[0-9]{1,5}")


@dataclass(frozen=True)
class Ask:
    """A rank asks; `look` if it will not read, `known_layout` is the digest of the one that it has."""

    rank: int
    world_size: int | None
    version: str | None
    look: bool
    known_layout: str | None


@dataclass(frozen=True)
class Grant:
    """One rank's shard, for as long as its lease is renewed every `lease_ms`.

    Parameters
    ----------
    version, rank, world_size : int
        What it is.
    publisher : str
        Another for every publisher that ever was; its memory is worth nothing to readers that knew another.
    session : str
        Its engine.
    lease_ms : int
        After so many milliseconds without a word the memory may be written again.
    layout_digest : str
        Of `layout`, which is None if the rank knows it.
    digests : tuple of str
        One per tensor of the layout.
    shards : tuple of str
        One per rank: digest of its tensors.
    finite : bool
        Whether it is promised that there is neither NaN nor infinity in them.
    """

    version: str
    rank: int
    world_size: int
    publisher: str
    session: str
    lease_ms: int
    layout_digest: str
    layout: TransferLayout | None
    digests: tuple[str, ...]
    shards: tuple[str, ...]
    finite: bool = False


@dataclass(frozen=True)
class Renew:
    """The rank reads on."""


@dataclass(frozen=True)
class Held:
    """The lease is renewed."""


@dataclass(frozen=True)
class Release:
    """The rank reads no more; `error` is the type of what ended it, empty if all is well."""

    error: str
    text: str


@dataclass(frozen=True)
class Released:
    """Whether the memory was held for the rank until it let go."""

    held: bool


@dataclass(frozen=True)
class Refuse:
    """The rank gets nothing: one of :data:`REASONS`, and what there is instead."""

    reason: str
    text: str
    found: int | str | None = None


@dataclass(frozen=True)
class Revoked:
    """The memory will be written, by every reader."""

    text: str


Message: TypeAlias = Ask | Grant | Renew | Held | Release | Released | Refuse | Revoked

_KINDS: dict[int, type[Any]] = dict(enumerate(get_args(Message), start=_FIRST_KIND))


def to_bytes(message: Message) -> bytes:
    """Return the bytes that say `message`."""
    if isinstance(message, Grant) and message.layout is not None:
        return _WORDS.encode(message, layout=_written(message.layout))
    return _WORDS.encode(message)


def _written(layout: TransferLayout) -> dict[str, Any]:
    return {
        "regions": [[region.address, region.nbytes] for region in layout.regions],
        "tensors": [[*fields.spec_row(t.spec), t.region, t.offset] for t in layout.tensors],
    }


def from_bytes(data: bytes, *, peer: str) -> Message:
    """Return the message.

    Raises
    ------
    PeerMessageError
        If the bytes are none. Any bytes give this or a message whose fields fit each other: every tensor of
        a layout lies within its region, and has a digest.
    """
    message: Message
    _, message = _WORDS.decode(data, peer=peer)
    if isinstance(message, Grant):
        _check_grant(message, peer)
    return message


def _check_grant(grant: Grant, peer: str) -> None:
    """Check what no field of a Grant says by itself."""
    problem = None
    if None in (grant.version, grant.world_size):
        problem = "its Grant does not say which version of how many ranks"
    elif len(grant.shards) != grant.world_size or grant.rank >= grant.world_size:
        problem = f"its Grant is for rank {grant.rank} of {grant.world_size} and lists {len(grant.shards)}"
    elif grant.layout is not None:
        problem = _problem_of(grant.layout, grant.digests)
    if problem is not None:
        raise PeerMessageError(peer=peer, problem=problem)


def _problem_of(layout: TransferLayout, digests: tuple[str, ...]) -> str | None:
    if len(digests) != len(layout.tensors):
        return f"its Grant has {len(layout.tensors)} tensors and {len(digests)} digests"
    names: set[str] = set()
    for placed in layout.tensors:
        name = placed.spec.name
        if name in names:
            return f"its Grant lists {name!r} twice"
        names.add(name)
        if placed.spec.nbytes and (
            placed.region >= len(layout.regions)
            or placed.offset + placed.spec.nbytes > layout.regions[placed.region].nbytes
        ):
            return f"its Grant puts {name!r} outside of the memory that it names"
    return None


def _layout(value: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {"regions", "tensors"}:
        return fields.WRONG
    regions, tensors = value["regions"], value["tensors"]
    if not isinstance(regions, list) or not isinstance(tensors, list):
        return fields.WRONG
    if not all(fields.are_counts(row, 2) and sum(row) <= fields.MAX_COUNT for row in regions):
        return fields.WRONG
    if sum(nbytes for _, nbytes in regions) > fields.MAX_COUNT:
        return fields.WRONG
    placed = [_placed(row) for row in tensors]
    if fields.WRONG in placed:
        return fields.WRONG
    return TransferLayout(tuple(MemoryRegion(*row) for row in regions), tuple(placed))


def _placed(row: Any) -> Any:
    if not isinstance(row, list) or not fields.are_counts(row[3:], 2):
        return fields.WRONG
    spec = fields.spec(row[:3])
    fits = spec is not fields.WRONG and spec.nbytes <= fields.MAX_COUNT
    return Placed(spec, *row[3:]) if fits else fields.WRONG


_WORDS = MessageTypes(
    _KINDS,
    {
        "rank": fields.count(),
        "world_size": fields.or_none(fields.count(least=1)),
        "version": fields.or_none(fields.version),
        "look": fields.flag,
        "finite": fields.flag,
        "layout": fields.or_none(_layout),
        "known_layout": fields.or_none(fields.digest),
        "publisher": fields.digest,
        "session": fields.matching(_SESSION),
        "lease_ms": fields.count(least=1),
        "layout_digest": fields.digest,
        "digests": fields.digests,
        "shards": fields.digests,
        "error": fields.text,
        "text": fields.text,
        "held": fields.flag,
        "reason": fields.one_of(REASONS),
        "found": fields.or_none(fields.version_or_count),
    },
)
