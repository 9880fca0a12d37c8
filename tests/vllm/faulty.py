"""wsm's worker extension with faults that a test asks for, in the file that WSM_TEST_FAULT names."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import psutil

from wsm.vllm.extension import WorkerExtension


class FaultyWorker(WorkerExtension):
    """A fault has a ``rank``, a ``kind``, and ``times``: how often it comes.

    Three come ``at`` a point: ``prepare``, ``load`` (just before), or the name of a tensor that is loaded.
    ``kill``: the process dies. ``orphan``: vLLM's API server does. ``late``: it goes on after ``seconds``, or
    never.

    ``digest``: its vote is another's. ``tensor``: the tensor of that name cannot be read while it is loaded.
    ``raise``: it raises when it is asked ``at``, which wsm's never does. ``damage``: the file at ``path`` is
    changed just before the load, as ``how`` says.
    """

    def wsm_answer(self, question):
        at = "load" if question.get("load") else "prepare" if question.get("place") else ""
        if at:
            self._wsm_reach(at)
        if at and self._wsm_fault("raise", at=at):
            raise RuntimeError("an extension raises")
        if at == "load" and (damage := self._wsm_fault("damage")):
            _change(Path(damage["path"]), damage["how"])
        answer = super().wsm_answer(question)
        if answer.get("staged") and self._wsm_fault("digest"):
            answer["staged"]["digest"] = "0" * 32
        return answer

    def other_raises(self):
        """What is no method of wsm's raises on the first rank, whose answer ends vLLM's reading."""
        if self.rank == 0:
            raise RuntimeError("another extension raises")

    def wsm_tensor(self, spec, data):
        self._wsm_reach(spec.name)
        if self._wsm_fault("tensor", name=spec.name):
            raise OSError(f"{spec.name}: the link is lost")
        return super().wsm_tensor(spec, data)

    def _wsm_reach(self, at):
        if self._wsm_fault("kill", at=at):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._wsm_fault("orphan", at=at):
            engine = psutil.Process().parent()
            engine.parent().kill()
        if late := self._wsm_fault("late", at=at):
            threading.Event().wait(late.get("seconds"))

    def _wsm_fault(self, kind, **where):
        return faulted(self.rank, kind, **where)


def faulted(rank, kind, **where):
    """Return the fault that a test asks of a rank now, which then comes once less; None: none."""
    file = Path(os.environ["WSM_TEST_FAULT"])
    if not file.exists():
        return None
    fault = json.loads(file.read_text())
    wanted = {"rank": rank, "kind": kind, **where}
    if fault["times"] < 1 or any(fault.get(key) != value for key, value in wanted.items()):
        return None
    # The other rank may read it now.
    beside = file.with_suffix(f".{rank}")
    beside.write_text(json.dumps({**fault, "times": fault["times"] - 1}))
    beside.replace(file)
    return fault


def _change(file, how):
    if how == "delete":
        file.unlink()
        return
    with file.open("r+b") as opened:
        middle = file.stat().st_size // 2
        if how == "truncate":
            opened.truncate(middle)
            return
        opened.seek(middle)
        [byte] = opened.read(1)
        opened.seek(middle)
        opened.write(bytes([byte ^ 1]))
