"""What every conversation between a trainer and a rank has in common, whatever travels beside it.

An address is a path or a host and a port. A frame is the xxh3-128 digest of a message (16 bytes) and the
message, a JSON object whose ``type`` is the message's name in lower case. A rank says what it wants, and gets
that or hears why not; what it waits for has a deadline. Knows no tensors.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from wsm.errors import RefusedError, WsmError, remedy
from wsm.labels import Label
from wsm.own_descriptor import not_inherited
from wsm.shared_directory import bind_alone
from wsm.strategies import errors
from wsm.strategies.digest import DIGEST_LENGTH, digest_of
from wsm.strategies.errors import VersionMismatchError
from wsm.strategies.peer_errors import PeerDiedError, PeerFailedError, PeerSilentError, peer_message
from wsm.strategies.promise import Count

Place: TypeAlias = Path | tuple[str, int]
Ranks: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
ShortWord: TypeAlias = Annotated[str, msgspec.Meta(max_length=2000)]

#: Bytes of the digest before a message.
HEAD_BYTES = DIGEST_LENGTH // 2

_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:]+\]|[0-9A-Za-z.-]+):([0-9]{1,5}|\*)")
# A socket's address on Linux holds 108 characters, the last of them zero.
_LONGEST_PATH, _LAST_PORT = 107, 0xFFFF

# How long to wait before a peer that is not there, or has nothing yet, is asked again.
_AGAIN_S = 0.1

_T = TypeVar("_T")


class PeerMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower):
    """A message. No other field is taken."""


class Wanted(PeerMessage, frozen=True):
    """A rank says who it is and what it wants; None: whichever there is. With `look` it will not read."""

    rank: Count
    world_size: Ranks | None
    version: Label | None
    look: bool


class Abort(PeerMessage, frozen=True):
    """The peer gives up, or nothing: the kind of reason, its error's type and text, what it has instead."""

    reason: Literal["failed", "version", "rank", "world_size", "busy"]
    error: ShortWord
    text: ShortWord
    found: Label | Count | None = None


def why_not(wanted: Wanted, version: str, ranks: int) -> Abort | None:
    """Return why what is offered, a version for so many ranks, is not what a rank wants; None if it is."""
    if wanted.version not in (None, version):
        return Abort("version", "version-mismatch", "another version is offered", version)
    if wanted.world_size not in (None, ranks):
        return Abort("world_size", "shard-identity", f"versions are offered for {ranks} ranks", ranks)
    if wanted.rank >= ranks:
        return Abort("rank", "shard-identity", f"versions are offered for ranks 0 to {ranks - 1}", ranks)
    return None


def refused(wanted: Wanted | None, told: Abort, peer: str) -> WsmError:
    """Return what a rank raises that was told why it gets nothing, or no more, of what it wanted."""
    found, ranks = told.found, None if wanted is None else wanted.world_size
    if wanted is not None and wanted.version and told.reason == "version" and isinstance(found, str):
        return VersionMismatchError(requested=wanted.version, found=found, where=peer)
    if ranks is not None and told.reason == "world_size" and isinstance(found, int):
        return errors.shard_identity(file=peer, field="world size", expected=ranks, found=found)
    return PeerFailedError(peer=peer, error=told.error, reason=told.text)


def frame_of(message: PeerMessage) -> bytes:
    """Return the frame that says `message`."""
    body = msgspec.json.encode(message)
    return bytes.fromhex(digest_of(body)) + body


def message_in(decoder: msgspec.json.Decoder[_T], frame: bytes, peer: str) -> _T:
    """Return what a frame says; peer_message if its bytes are none of the decoder's messages."""
    body = memoryview(frame)[HEAD_BYTES:]
    if digest_of(body) != frame[:HEAD_BYTES].hex():
        raise peer_message(peer=peer, problem="it is cut short or damaged, its digest does not match")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise peer_message(peer=peer, problem=str(error)) from error


class Meeting:
    """How long a peer is waited for that has said nothing: one that was there and has gone may come back.

    Parameters
    ----------
    peer : str
        What errors call it.
    connect_s, silence_s : float
        How long in all, and for one that has gone.
    """

    def __init__(self, peer: str, connect_s: float, silence_s: float) -> None:
        self._peer, self._connect_s, self._silence_s = peer, connect_s, silence_s
        self._begun_s = time.monotonic()
        self._gone_s: float | None = None
        self._met = False
        self._again_s = 0.0
        #: What the peer has answered instead of its offer, to be told at the end.
        self.told: Abort | None = None

    def asks_again(self) -> bool:
        """Whether it is time to ask once more; true at first."""
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + _AGAIN_S
        return True

    def wait(self, *, there: bool, left: bool = False) -> None:
        """Take in whether the peer is there now, or has `left`; raise if it was waited for long enough.

        Raises
        ------
        PeerDiedError, PeerSilentError
            If it has gone and no process took its place, or has not said anything.
        PeerFailedError
            If it has `told` that there is nothing, and no more.
        """
        now_s = time.monotonic()
        if there:
            self._met, self._gone_s = True, None
        elif self._gone_s is None and (self._met or left):
            self._gone_s = now_s
        waited_s = now_s - self._begun_s
        expired, gone_s = waited_s >= self._connect_s, self._gone_s
        if gone_s is not None and (expired or now_s - gone_s >= self._silence_s):
            raise PeerDiedError(peer=self._peer, expected="its offer", absent_s=now_s - gone_s)
        if expired and self.told is not None:
            raise refused(None, self.told, self._peer)
        if expired:
            raise PeerSilentError(peer=self._peer, waited_s=waited_s, expected="its offer", met=self._met)


def place_in(address: str) -> Place | None:
    """Return the path of ``ipc:///absolute/path``, or host and port of ``tcp://host:port``; 0 for any port.

    None if it is neither, or the path is too long for a socket.
    """
    path = address.removeprefix("ipc://")
    if path != address:
        return Path(path) if path.startswith("/") and len(os.fsencode(path)) <= _LONGEST_PATH else None
    found = _TCP.fullmatch(address)
    port = 0 if found is None or found[2] == "*" else int(found[2])
    return None if found is None or port > _LAST_PORT else (found[1].strip("[]"), port)


def address_of(place: Place) -> str:
    """Return the address of a place."""
    if isinstance(place, Path):
        return f"ipc://{place}"
    return f"tcp://[{place[0]}]:{place[1]}" if ":" in place[0] else f"tcp://{place[0]}:{place[1]}"


def socket_for(place: Place) -> socket.socket:
    """Make a stream socket of the family of a place, which no forked child keeps."""
    family = socket.AF_UNIX
    if not isinstance(place, Path):
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    return not_inherited(socket.socket(family, socket.SOCK_STREAM))


@dataclass(frozen=True)
class ListeningSocket:
    """A socket that listens, where, and what gives its place back."""

    socket: socket.socket
    place: Place
    release: Callable[[], None]

    @property
    def address(self) -> str:
        """Where others find it."""
        return address_of(self.place)


def listen(place: Place) -> ListeningSocket:
    """Listen at a place.

    Raises
    ------
    RefusedError
        If another process listens there, or it cannot be listened at.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file.
    """
    try:
        if isinstance(place, Path):
            bound = bind_alone(place)
            if bound is None:
                raise busy(place)
            bound.socket.listen()
            return ListeningSocket(bound.socket, place, bound.release)
        made = socket_for(place)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen()
        except BaseException:
            made.close()
            raise
        return ListeningSocket(made, (place[0], made.getsockname()[1]), lambda: None)
    except OSError as error:
        raise busy(place, str(error), remedy(error)) from error


def busy(place: Place, reason: str = "another process listens there", fix: str | None = None) -> RefusedError:
    """Return the error of a place that cannot be listened at."""
    address = address_of(place)
    return RefusedError(
        f"cannot listen at {address}: {reason}; {fix or 'end the other sender or choose another address'}",
        code="address-busy",
        address=address,
        reason=reason,
    )
