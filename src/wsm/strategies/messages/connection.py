"""One connection that whole messages go through, from either end; no call of it blocks.

It holds no more of what comes than one message and one read. What is to leave waits here until the other side
takes it: its user says no more than its protocol allows. Knows no message's meaning, and waits for no
process.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TypeAlias

from wsm.own_descriptor import not_inherited
from wsm.strategies.messages import zmtp

#: What a socket takes for an address: its family, and a path or a host and a port.
Place: TypeAlias = tuple[socket.AddressFamily, "str | tuple[str, int]"]

# Bytes that one read brings at most.
_READ_BYTES = 1 << 16
# Pieces that one call hands over at most.
_PIECES = 16


class Connection:
    """One end.

    Parameters
    ----------
    connected : socket.socket
        Belongs to the connection from now on.
    kind : str
        ``ROUTER`` for the side that listened, ``DEALER`` for the other one.
    most_bytes : int
        The longest message that may come.

    Attributes
    ----------
    ended : bool
        Whether nothing will come any more; what came before can still be had.
    kept : bool
        Whether its listener must not give it up for another one.
    """

    def __init__(self, connected: socket.socket, kind: str, most_bytes: int) -> None:
        self.ended = self.kept = False
        self._socket = not_inherited(connected)
        self._incoming = zmtp.Incoming(most_bytes)
        self._unsent: deque[memoryview] = deque()
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._hand_over(zmtp.opening(kind))

    def fileno(self) -> int:
        """Return its descriptor, for selectors; -1 once it is closed."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits until the other side takes it."""
        return bool(self._unsent)

    def next(self) -> bytes | None:
        """Return the next whole message of what was read; None if there is none.

        Raises
        ------
        ValueError
            If what came is no message that may come; says so in words.
        """
        return self._incoming.next()

    def read(self) -> bool:
        """Read once, after :meth:`next` has returned None; whether anything came."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        self.ended = not data
        self._incoming.feed(data)
        return bool(data)

    def send(self, *parts: bytes) -> bool:
        """Say one message, whose bytes may come in several pieces; False if the other side is gone."""
        return self._hand_over(zmtp.head(sum(map(len, parts))), *parts)

    def flush(self) -> bool:
        """Hand over what the other side takes; False if it is gone."""
        while self._unsent:
            pieces = [self._unsent[index] for index in range(min(len(self._unsent), _PIECES))]
            try:
                sent = self._socket.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                self._unsent.clear()
                return False
            while sent:
                first = self._unsent.popleft()
                if len(first) > sent:
                    self._unsent.appendleft(first[sent:])
                sent -= min(len(first), sent)
        return True

    def close(self) -> None:
        """Close; what has not left is lost. Idempotent."""
        self._unsent.clear()
        self._socket.close()

    def _hand_over(self, *pieces: bytes) -> bool:
        self._unsent.extend(memoryview(piece) for piece in pieces if piece)
        return self.flush()
