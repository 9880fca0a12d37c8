"""The two ends of the conversation about buckets: a trainer's ROUTER socket, and a rank's DEALER socket.

The listening trainer keeps a lock file locked: ``PATH.lock`` for ``ipc://PATH``, which must lie in a
directory of this user that is closed to all others, ``wsm-sender-PORT.lock`` in this user's private directory
for TCP. It holds the trainer's public CURVE key, so only processes of this user can speak: libzmq ends every
other connection during its handshake, before any message. Whether the file is locked says whether the trainer
lives; a connection does not, since forked children keep it open.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import ExitStack, closing, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import zmq

from wsm.errors import BadInputError, RefusedError, remedy
from wsm.own_descriptor import OwnDescriptor
from wsm.shared_directory import (
    open_ours,
    private_directory,
    require,
    require_private,
    trusted_in,
    try_lock_file,
)
from wsm.strategies.buckets.wire import MOST_TO_RANK, MOST_TO_TRAINER
from wsm.strategies.conversation import Place, address_of, busy, listen, place_in

# The byte of the lock file that its trainer locks.
_LISTENS = 0
_KEY_BYTES = 40
# Messages that wait for either side; a trainer has fewer buckets in flight.
_MOST_WAITING = 128
_HANDSHAKE_MS = 2000
# How long another sender that sweeps may hold a lock file that is none of its own.
_SWEEP_S = 0.05
# What libzmq opens for a context and a socket.
_DESCRIPTORS = 12


def place_of(address: str) -> Place:
    """Return the path, or the host and port, of an address; port 0 for any.

    Raises
    ------
    BadInputError
        If it is neither an absolute ``ipc://`` path nor a loopback ``tcp://`` address.
    """
    place = place_in(address.replace("tcp://localhost:", "tcp://127.0.0.1:"))
    try:
        if isinstance(place, Path) or (place is not None and ip_address(place[0]).is_loopback):
            return place
    except ValueError:
        pass  # a name, which may be any host's
    raise BadInputError(
        f"the address {address!r} cannot be used: buckets lie in memory of this host, so give "
        "ipc:///absolute/path, of at most 107 bytes, or tcp://127.0.0.1:port",
        code="bad-address",
        address=address,
    )


def _require_own_directory(place: Path) -> None:
    require_private(place.parent, place.parent.lstat(), another="name a path in a directory of your own")


def _lock_file_of(place: Place) -> Path:
    if isinstance(place, Path):
        return place.with_name(f"{place.name}.lock")
    return private_directory() / f"wsm-sender-{place[1]}.lock"


def _new_context(stack: ExitStack) -> zmq.Context[zmq.Socket[bytes]]:
    """Make a context of this process' own; OSError where descriptors are short, which would end libzmq's."""
    with ExitStack() as spare:
        for _ in range(_DESCRIPTORS):
            spare.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    context = zmq.Context()
    stack.callback(context.destroy, linger=0)
    return context


def _configured(made: zmq.Socket[bytes], most_bytes: int, **options: Any) -> zmq.Socket[bytes]:
    limits = {"MAXMSGSIZE": most_bytes, "RCVHWM": _MOST_WAITING, "SNDHWM": _MOST_WAITING, "LINGER": 0}
    for name, value in {**limits, "IPV6": 1, "HANDSHAKE_IVL": _HANDSHAKE_MS, **options}.items():
        made.setsockopt(getattr(zmq, name), value)
    return made


class TrainerSocket:
    """Where a trainer listens. One thread at a time may use it; :meth:`close` in any case.

    Attributes
    ----------
    address : str
        Where ranks find it.

    Raises
    ------
    BadInputError, RefusedError
        If the address is none, or another process listens there.
    wsm.shared_directory.ForeignPathError
        If something else lies at the path, or in the place of its lock file, or others may look into its
        directory.
    """

    def __init__(self, address: str) -> None:
        place = place_of(address)
        with ExitStack() as stack:
            try:
                if isinstance(place, Path):
                    _require_own_directory(place)
                listening = listen(place)
                place = listening.place
                stack.callback(listening.release)
                made = stack.enter_context(listening.socket)
                if not isinstance(place, Path):
                    _lock_port(place, stack)
                context = _new_context(stack)
            except OSError as error:
                raise busy(place, str(error), remedy(error)) from error
            key, secret = zmq.curve_keypair()
            options = {"CURVE_SERVER": 1, "CURVE_SECRETKEY": secret, "USE_FD": made.fileno()}
            if isinstance(place, Path):
                options["IPC_FILTER_UID"] = os.geteuid()
            self.address, lock = listening.address, _lock_file_of(place)
            self._socket = _configured(context.socket(zmq.ROUTER), MOST_TO_TRAINER, **options)
            self._socket.bind(self.address)
            stack.callback(made.detach)  # libzmq closes it now
            self._lock = OwnDescriptor(lambda: open_ours(lock, also=trusted_in(lock.parent)))
            os.pwrite(self._lock.number, key, 0)
            self._lock.try_lock_byte(_LISTENS)
            self._held = stack.pop_all()

    def receive(self, seconds: float) -> tuple[bytes, bytes] | None:
        """Wait for a message, `seconds` at most; who says it, and its frame."""
        if not self._socket.poll(int(seconds * 1000)):
            return None
        who, *frames = self._socket.recv_multipart()
        return who, frames[0] if len(frames) == 1 else b""

    def send(self, who: bytes, frame: bytes) -> None:
        """Say something to a rank; one that has gone does not hear it. Does not block."""
        self._socket.send_multipart([who, frame], zmq.NOBLOCK)

    def require_own(self) -> None:
        """See that this is not a forked child, which has none of it: RefusedError otherwise."""
        _ = self._lock.number

    def close(self) -> None:
        """Listen no more. In a forked child nothing happens to its parent's end. Idempotent."""
        self._held.close()
        self._lock.close()


def _lock_port(place: Place, stack: ExitStack) -> None:
    """Lock the file of a port for as long as `stack`, and remove those of senders that were killed."""
    for left in private_directory().glob("wsm-sender-*.lock"):
        if dead := try_lock_file(left):
            dead.release(remove=True)
    lock = try_lock_file(_lock_file_of(place))
    if lock is None:
        time.sleep(_SWEEP_S)
        lock = try_lock_file(_lock_file_of(place))
    if lock is None:
        raise busy(place)
    stack.callback(lock.release, remove=True)


class RankSocket:
    """A rank's way to the trainer at an address. One thread at a time may use it; :meth:`close` in any case.

    Attributes
    ----------
    lives : bool
        Whether a trainer listens, as :meth:`look` saw it last.
    left : bool
        Whether one that does not listen any more has left its lock file.

    Raises
    ------
    BadInputError
        If the address is none.
    """

    def __init__(self, address: str) -> None:
        self._place = place_of(address)
        self.lives = self.left = False
        self._key = b""
        self._held = ExitStack()
        self._socket: zmq.Socket[bytes] | None = None

    def look(self) -> bool:
        """See whether a trainer listens, and connect to it; whether it is another one than before.

        Raises
        ------
        wsm.shared_directory.ForeignPathError
            If another user's socket or lock file lies there, or other users may put some there.
        RefusedError
            If this process may open no more files, or not those.
        """
        address = address_of(self._place)
        try:
            key = b""
            self.lives = self.left = False
            with suppress(FileNotFoundError), closing(OwnDescriptor(self._opened)) as file:
                self.lives = file.is_byte_locked(_LISTENS)
                self.left = not self.lives
                key = os.pread(file.number, _KEY_BYTES, 0)
                if self.lives and isinstance(self._place, Path):
                    _require_own_directory(self._place)
                    require(self._place, self._place.lstat(), stat.S_IFSOCK)
            if not self.lives or key == self._key:
                return False
            self._held.close()  # the connection to the one before
            self._socket = None
            made = _new_context(self._held).socket(zmq.DEALER)
        except OSError as error:
            text = f"cannot connect to {address}: {error}; {remedy(error) or 'look who may open it'}"
            raise RefusedError(text, code="cannot-connect", address=address, reason=str(error)) from error
        own, secret = zmq.curve_keypair()
        keys = {"CURVE_SERVERKEY": key, "CURVE_PUBLICKEY": own, "CURVE_SECRETKEY": secret}
        self._socket = _configured(made, MOST_TO_RANK, **keys)
        self._socket.connect(address)
        self._key = key
        return True

    def _opened(self) -> int:
        path = _lock_file_of(self._place)
        return open_ours(path, os.O_RDONLY, also=trusted_in(path.parent))

    def receive(self, seconds: float) -> bytes | None:
        """Wait for a message, `seconds` at most."""
        if self._socket is None or not self._socket.poll(int(seconds * 1000)):
            if self._socket is None:
                time.sleep(seconds)
            return None
        frames = self._socket.recv_multipart()
        return frames[0] if len(frames) == 1 else b""

    def send(self, frame: bytes) -> None:
        """Say something. Does not block: what a trainer that is gone does not take is lost."""
        if self._socket is not None:
            with suppress(zmq.Again):
                self._socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Close at once. Idempotent."""
        self._held.close()
