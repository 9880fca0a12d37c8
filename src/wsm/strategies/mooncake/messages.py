"""What a rank and a publisher say to each other about a version in registered memory. Pure.

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

A connection is one lease: whoever closes it has let go. The envelope is that of
:mod:`wsm.strategies.messages.frames`; a Grant leaves out a layout whose digest the rank said it knows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from wsm.strategies.digest import DIGEST_LENGTH
from wsm.strategies.documents.strict_json import is_count, is_text
from wsm.strategies.files.version_file import MAX_VERSION
from wsm.strategies.messages import frames
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.mooncake.plan import Layout, Placed, Region
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

#: Why a publisher gives nothing; ``empty``: there is no version (yet).
REASONS = ("empty", "version", "rank", "world_size", "failed")

# Kinds of frames; those of the buckets' messages are below.
_FIRST_KIND = 64
_MAX_COUNT = (1 << 63) - 1
_MAX_TEXT = 1 << 16
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_LENGTH}}}")
_SESSION = re.compile(r"[0-9.]{7,15}:[0-9]{1,5}")


@dataclass(frozen=True)
class Ask:
    """A rank asks; `look` if it will not read, `known_layout` is the digest of the one that it has."""

    rank: int
    world_size: int | None
    version: int | None
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
        Another for every publisher that ever was; its memory is worth nothing to who knew another one.
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
    """

    version: int
    rank: int
    world_size: int
    publisher: str
    session: str
    lease_ms: int
    layout_digest: str
    layout: Layout | None
    digests: tuple[str, ...]
    shards: tuple[str, ...]


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
    found: int | None = None


@dataclass(frozen=True)
class Revoked:
    """The memory will be written, whoever reads it."""

    text: str


Message: TypeAlias = Ask | Grant | Renew | Held | Release | Released | Refuse | Revoked

_KINDS: dict[int, type[Any]] = dict(enumerate(get_args(Message), start=_FIRST_KIND))
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def to_bytes(message: Message) -> bytes:
    """Return the bytes that say `message`."""
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    if isinstance(message, Grant) and message.layout is not None:
        fields["layout"] = {
            "regions": [[region.address, region.nbytes] for region in message.layout.regions],
            "tensors": [
                [t.spec.name, t.spec.dtype, list(t.spec.shape), t.region, t.offset]
                for t in message.layout.tensors
            ],
        }
    return frames.encode(frames.Frame(_NUMBERS[type(message)], 0, fields))


def from_bytes(data: bytes, *, peer: str) -> Message:
    """Return the message.

    Raises
    ------
    PeerMessageError
        If the bytes are none. Any bytes give this or a message whose fields fit each other: every tensor of
        a layout lies within its region, and has a digest.
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
    values = {}
    for name in names:
        values[name] = _CHECKS[name](frame.fields[name])
        if values[name] is _WRONG:
            raise PeerMessageError(
                peer=peer,
                problem=f"the field {name} of its {kind.__name__} is wrong: {frame.fields[name]!r:.100}",
            )
    message: Message = kind(**values)
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


def _problem_of(layout: Layout, digests: tuple[str, ...]) -> str | None:
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


_WRONG: Any = object()


def _count(limit: int, least: int = 0) -> Callable[[Any], Any]:
    return lambda value: value if is_count(value) and least <= value <= limit else _WRONG


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _WRONG


def _text(value: Any) -> Any:
    return value if is_text(value) and len(value) <= _MAX_TEXT else _WRONG


def _reason(value: Any) -> Any:
    return value if isinstance(value, str) and value in REASONS else _WRONG


def _session(value: Any) -> Any:
    return value if isinstance(value, str) and _SESSION.fullmatch(value) else _WRONG


def _digest(value: Any) -> Any:
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else _WRONG


def _digests(value: Any) -> Any:
    if not isinstance(value, list) or not all(
        isinstance(entry, str) and _DIGEST.fullmatch(entry) for entry in value
    ):
        return _WRONG
    return tuple(value)


def _layout(value: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {"regions", "tensors"}:
        return _WRONG
    regions, tensors = value["regions"], value["tensors"]
    if not isinstance(regions, list) or not isinstance(tensors, list):
        return _WRONG
    if not all(_are_counts(row, 2) and sum(row) <= _MAX_COUNT for row in regions):
        return _WRONG
    placed = [_placed(row) for row in tensors]
    if _WRONG in placed:
        return _WRONG
    return Layout(tuple(Region(*row) for row in regions), tuple(placed))


def _placed(row: Any) -> Any:
    if not isinstance(row, list) or len(row) != 5:
        return _WRONG
    name, dtype, shape, *place = row
    if not is_text(name) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        return _WRONG
    if not isinstance(shape, list) or not all(map(is_count, shape)) or not _are_counts(place, 2):
        return _WRONG
    spec = TensorSpec(name, dtype, tuple(shape))
    return Placed(spec, *place) if spec.nbytes <= _MAX_COUNT else _WRONG


def _are_counts(row: Any, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(map(is_count, row))


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "rank": _count(_MAX_COUNT),
    "world_size": _or_none(_count(_MAX_COUNT, least=1)),
    "version": _or_none(_count(MAX_VERSION)),
    "look": _flag,
    "layout": _or_none(_layout),
    "known_layout": _or_none(_digest),
    "publisher": _digest,
    "session": _session,
    "lease_ms": _count(_MAX_COUNT, least=1),
    "layout_digest": _digest,
    "digests": _digests,
    "shards": _digests,
    "error": _text,
    "text": _text,
    "held": _flag,
    "reason": _reason,
    "found": _or_none(_count(_MAX_COUNT)),
}
