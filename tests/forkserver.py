"""Programs that begin with wsm imported already: forked from a process that imported it once.

Each is a process with memory, descriptors, locks and a death of its own, and a child of the test process, as
one of :mod:`subprocess` is. What it does not have is the start of an interpreter and the imports before its
first line, which for two ranks cost more than most tests do with them. That ranks come up by themselves is
shown by those of the reference engine and of the command line; that ``wsm serve`` does, by its own tests.

As a script, ``forkserver.py DESCRIPTOR MODULE...``, this is the process that is forked from. It ends when its
client does, and never runs a second thread: what starts one when it is imported is not imported here.
"""

from __future__ import annotations

import array
import atexit
import contextlib
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
import types
from os import pidfd_open  # at once: some tests take it away
from pathlib import Path
from typing import IO, Any

from typing_extensions import Self

_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 20
_PATIENCE_S = 60.0

#: Their pids: each ends with this process, which what it has forked does not do.
SERVERS: set[int] = set()


class Forked:
    """A program that runs: the part of :class:`subprocess.Popen` that tests use.

    Streams are of bytes, without buffers, or of text; None where an output goes elsewhere.
    """

    def __init__(self, pid: int, stdin: IO[Any], stdout: IO[Any] | None, stderr: IO[Any] | None) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def communicate(self, told: Any = None, timeout: float = _PATIENCE_S) -> Any:
        """Tell it that and the end of its input, wait until it ends, and return what it has written."""
        if told:
            self.stdin.write(told)
        self.stdin.close()
        # An output fills no pipe, or the other one stays empty, in all tests.
        said = tuple(None if each is None else each.read() for each in (self.stdout, self.stderr))
        self.wait(timeout)
        self.close()
        return said

    def wait(self, timeout: float = _PATIENCE_S) -> int:
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

    def start(
        self,
        *command: object,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.STDOUT,
        text: bool = False,
    ) -> Forked:
        """Run what ``python COMMAND`` would (PATH, ``-c`` CODE, ``-m`` MODULE, and arguments) from here.

        It has this process's environment, path and working directory. Outputs are as of
        :class:`subprocess.Popen`; a `stderr` of None is this process's own.
        """
        if self._socket is None:
            self._socket = self._serving()
        request = {
            "command": [*map(str, command)],
            "directory": str(Path.cwd()),
            "path": sys.path,
            "environment": dict(os.environ),
        }
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            binary = "" if text else "b"

            def pipe(ours: str) -> tuple[IO[Any], int]:
                ends = os.pipe()
                mine, handed_over = ends if ours == "r" else reversed(ends)
                theirs.callback(os.close, handed_over)
                stream = os.fdopen(mine, ours + binary, -1 if text else 0)
                undo.callback(stream.close)
                return stream, handed_over

            def output(asked: int | IO[Any]) -> tuple[IO[Any] | None, int]:
                if asked == subprocess.PIPE:
                    return pipe("r")
                if asked == subprocess.DEVNULL:
                    return None, theirs.enter_context(Path(os.devnull).open("wb")).fileno()
                return None, asked if isinstance(asked, int) else asked.fileno()

            to_it, stdin = pipe("w")
            said, out = output(stdout)
            stderr = out if stderr == subprocess.STDOUT else 2 if stderr is None else stderr
            errors, err = output(stderr)
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [stdin, out, err])
                pid = int(self._socket.recv(64))
            finally:
                _adopt_orphans(False)
            undo.pop_all()
        return Forked(pid, to_it, said, errors)

    def run(self, *command: object) -> str:
        """Run it to the end, which is to be a good one; return what it printed. Errors go where ours do."""
        with self.start(*command, stderr=None, text=True) as program:
            said: str = program.communicate()[0]
        assert program.returncode == 0
        return said

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
        SERVERS.add(self._process.pid)
        atexit.register(self._end)
        return ours

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


#: For programs that compute nothing, for commands and servers, and for those that meet on Gloo.
WITHOUT_PADDLE = ForkServer(
    "wsm",
    "wsm.testing",
    "wsm.actions.measuring",
    "wsm.actions.backends.memory",
    "wsm.strategies.load",
    "wsm.strategies.snapshot.publish",
    "wsm.strategies.snapshot.ipc_snapshot",
    "wsm.worker.loading",
)
FOR_COMMANDS = ForkServer(
    "wsm.cli.main",
    "wsm.cli.commanding",
    "wsm.cli.serving",
    "wsm.cli.fleet",
    "wsm.cli.adopting",
    "wsm.http.app",
    "wsm.http._serving",
    "wsm.http.surfaces",
    "wsm.http.upstream",
    "wsm.fleet.serving",
    "wsm.fleet.watching",
    "uvicorn.protocols.http.h11_impl",
    "structlog",
    "stringprep",
)
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
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    what, *sys.argv[:] = request["command"]
    if what == "-m":
        sys.path[:] = [request["directory"], *request["path"]]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.path[:] = ["", *request["path"]]
        code, sys.argv[0] = sys.argv[0], what
        sys.modules["__main__"] = program = types.ModuleType("__main__")
        exec(code, vars(program))  # noqa: S102 - as an interpreter does
    else:
        sys.argv.insert(0, what)
        sys.path[:] = [str(Path(what).parent), *request["path"]]
        runpy.run_path(what, run_name="__main__")


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
