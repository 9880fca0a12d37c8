"""How a process of the examples starts, learns that rank 0 steps, and is asked to end.

Entering a step stores a word in shared memory and wakes no rank, which keeps it cheap. A rank that only
follows sleeps on a datagram socket instead; rank 0 sends it one byte per step. The byte is a hint and
nothing more: what to do is decided by the words, and a follower looks at them now and then anyway.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from pathlib import Path
from types import FrameType

from wsm.shared_directory import bind_socket


class Stop:
    """Whether the process was asked to end; looked at between two turns of its loop."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def environment_of_processes() -> dict[str, str]:
    """Return the environment of a process of the examples: quiet, of one thread, and able to import them."""
    clone = Path(__file__).resolve().parents[2]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(clone), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "1",
        "PYTHONWARNINGS": "ignore:No ccache found:UserWarning",
    }


#: A follower looks at the words this often, whether rank 0 rang or not.
LOOK_S = 0.02


def bell_path(run_directory: Path, rank: int) -> Path:
    """Return where a follower listens."""
    return run_directory / f"rank{rank}.bell"


class StepBell:
    """Rank 0's end.

    Parameters
    ----------
    run_directory : Path
        Private to one run of the group.
    ranks : int
        Of the group.
    """

    def __init__(self, run_directory: Path, ranks: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._listeners = [str(bell_path(run_directory, rank)) for rank in range(1, ranks)]

    def ring(self) -> None:
        """Wake every follower. Never blocks; one that is not there, or still has to wake, is skipped."""
        for listener in self._listeners:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                self._socket.sendto(b"\0", listener)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._socket.close()


class BellListener:
    """A follower's end.

    Parameters
    ----------
    run_directory : Path
        As rank 0's.
    rank : int
        The follower.
    """

    def __init__(self, run_directory: Path, rank: int) -> None:
        self._path = bell_path(run_directory, rank)
        self._socket = bind_socket(self._path, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def wait(self, other: int, timeout_s: float = LOOK_S) -> None:
        """Wait until it rings, or the descriptor `other` becomes readable; blocks up to `timeout_s`."""
        ready, _, _ = select.select([self._socket.fileno(), other], [], [], timeout_s)
        if self._socket.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                while self._socket.recv(1):
                    pass

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
