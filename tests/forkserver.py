"""Programs that begin with wsm imported already: forked from a process that imported it once.

Each is a process with memory, descriptors, locks and a death of its own, and a child of the test process, as
one of :mod:`subprocess` is. What it does not have is the start of an interpreter and the imports before its
first line, which for two ranks cost more than most tests do with them. That ranks come up by themselves is
shown by those of the reference engine and of the command line.

As a script, ``forkserver.py DESCRIPTOR MODULE...``, this is the process that is forked from. It ends when its
client does, and never runs a second thread: what starts one when it is imported is not imported here.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from os import pidfd_open  # at once: some tests take it away
from pathlib import Path
from typing import IO, Any

_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 20
_PATIENCE_S = 60.0


class Forked:
    """A program that runs: the part of :class:`subprocess.Popen` that tests use.

    `stderr` is None where both outputs are one.
    """

    def __init__(
        self, pid: int, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes] | None = None
    ) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Return its exit code, or minus the signal that ended it."""
        if self.returncode is None:
            try:
                handle = pidfd_open(self.pid)
                ended, _, _ = select.select([handle], [], [], timeout)
                os.close(handle)
                if not ended:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except (ProcessLookupError, ChildProcessError):
                while self.returncode is None:  # another thread has its exit code, and is about to say it
                    time.sleep(0.001)
        return self.returncode

    def close(self) -> None:
        """End it, and let its pipes go. Idempotent."""
        self.kill()
        self.wait(_PATIENCE_S)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class ForkServer:
    """Forks programs in Python from a process that has imported `modules`; started with the first of them."""

    def __init__(self, *modules: str, **environment: str) -> None:
        self._modules, self._environment = modules, environment
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, path: Path, *arguments: str, separate_errors: bool = False) -> Forked:
        """Run a script as ``python path arguments`` would, with this process's environment and path."""
        if self._socket is None:
            self._socket = self._serving()
        theirs, stdin = os.pipe()
        ours, handed_over = [stdin], [theirs]
        for _ in range(2 if separate_errors else 1):
            reading, writing = os.pipe()
            ours.append(reading)
            handed_over.append(writing)
        request = {"argv": [str(path), *arguments], "path": sys.path, "environment": dict(os.environ)}
        _adopt_orphans(True)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], handed_over)
            pid = int(self._socket.recv(64))
        finally:
            _adopt_orphans(False)
            for descriptor in handed_over:
                os.close(descriptor)
        return Forked(pid, *(os.fdopen(each, "rb" if each != stdin else "wb", buffering=0) for each in ours))

    def _serving(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    **self._environment,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
        atexit.register(self._end)
        return ours

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


#: For programs that compute nothing, and for those that meet on Gloo.
WITHOUT_PADDLE = ForkServer("wsm", "wsm.actions.measuring", "wsm.testing")
WITH_PADDLE = ForkServer(
    "wsm",
    "wsm.testing",
    "paddle",
    OMP_NUM_THREADS="1",
    GLOG_minloglevel="2",
    PYTHONWARNINGS="ignore:No ccache found:UserWarning",
)


def _adopt_orphans(whether: bool) -> None:
    """Become, or be no more, the parent of those below us who lose theirs; see :func:`_fork_for_client`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(client: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for every request. Returns in each process that was forked, and, without a request, at the end."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(client, _MOST_BYTES, 3)
        if not data:
            return None
        pid = _fork_for_client()
        if pid is None:
            return json.loads(data), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        client.send(str(pid).encode())


def _fork_for_client() -> int | None:
    """Fork a grandchild whose parent ends at once, so that the client adopts it; None in the grandchild."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        between = os.getpid()
        grandchild = os.fork()
        if grandchild == 0:
            os.close(reading)
            os.close(writing)
            while os.getppid() == between:
                os.sched_yield()  # its program is never to see another parent than the client
            return None
        os.write(writing, array.array("i", [grandchild]).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    pid = array.array("i", os.read(reading, 16))[0]
    os.close(reading)
    os.close(writing)
    return pid


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    for standard in range(3):
        os.dup2(descriptors[min(standard, len(descriptors) - 1)], standard)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["argv"]
    sys.path[:] = [str(Path(sys.argv[0]).parent), *request["path"]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            # A fork would be without that thread, with the locks that it holds: paddle 2.6 starts one when it
            # is imported. So begin anew without that module, which programs then import themselves.
            left = [name for name in sys.argv[2:] if name != module]
            command = [sys.executable, *sys.argv[:2], *left]
            os.execv(sys.executable, command)  # noqa: S606 - no shell is what is wanted
    gc.freeze()  # or every collection of a forked process copies what they share
    with socket.socket(fileno=int(sys.argv[1])) as client:
        forked = _serve(client)
    if forked is not None:
        _become(*forked)


if __name__ == "__main__":
    main()
