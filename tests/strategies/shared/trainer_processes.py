"""Processes of one trainer, told call by call what to do, and killed before a line of the code under test."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from tests.another_user import fork
from wsm.errors import WsmError

#: The calls of a process by their names, made in it.
Calls: TypeAlias = "Callable[[], dict[str, Callable[..., Any]]]"


class TrainerProcess:
    """A forked child that answers calls; `lines` says how many lines of `traced` files the last one ran."""

    def __init__(self, calls: Calls, traced: Sequence[str] = ()) -> None:
        ours, theirs = socket.socketpair()
        self.lines = 0
        self._pid: int | None = fork()
        if self._pid == 0:
            try:
                ours.close()
                _answer(theirs, calls, tuple(traced))
            finally:
                os._exit(0)
        theirs.close()
        self._words = ours.makefile("rwb")
        ours.close()

    def call(self, name: str, *arguments: Any, kill_at: int | None = None) -> Any:
        """Return what a call answers: an error as ``[code, message]``; None if the process died in it.

        With `kill_at` it kills itself with SIGKILL before that line of those that it has not run before.
        """
        self._words.write(json.dumps([name, arguments, kill_at]).encode() + b"\n")
        self._words.flush()
        answer = self._words.readline()
        if not answer:
            assert self.end() == -signal.SIGKILL
            return None
        said, self.lines = json.loads(answer)
        return said

    def kill(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self.end()

    def end(self) -> int:
        """Let it come to its end; return its exit code."""
        pid, self._pid = self._pid, None
        self._words.close()
        return 0 if pid is None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def __enter__(self) -> TrainerProcess:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid is not None:
            self.end()


def _answer(words: socket.socket, calls: Calls, traced: tuple[str, ...]) -> None:
    made = calls()
    with words.makefile("rwb") as file:
        for line in file:
            name, arguments, kill_at = json.loads(line)
            lines = _Lines(traced, kill_at)
            sys.settrace(lines.of_call)
            try:
                said = made[name](*arguments)
            except WsmError as error:
                said = [error.code, str(error)]
            finally:
                sys.settrace(None)
            file.write(json.dumps([said, len(lines.known)]).encode() + b"\n")
            file.flush()


class _Lines:
    def __init__(self, traced: tuple[str, ...], kill_at: int | None) -> None:
        self.known: set[tuple[str, int]] = set()
        self._traced, self._kill_at = traced, kill_at

    def of_call(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        return self._of_line if frame.f_code.co_filename.endswith(self._traced) else None

    def _of_line(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        line = (Path(frame.f_code.co_filename).name, frame.f_lineno)
        if event == "line" and line not in self.known:
            if len(self.known) == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.known.add(line)
        return self._of_line
