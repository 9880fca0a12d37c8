"""Shared by tests and the processes they start: permits of real steps, a stand-in for an update's plan."""

from __future__ import annotations

from wsm.worker.worker import OpenedStep, StepPermit


class Steps:
    """Hands out the permit of a worker that always may step: `with steps(version) as permit:`."""

    def __init__(self) -> None:
        self.version = "1"
        self._step = 0
        self._permit = StepPermit(0, memoryview(bytearray(8)).cast("Q"), 0, self._open, self._broken)

    def __call__(self, version: int = 1) -> StepPermit:
        self.version = str(version)
        return self._permit

    def _open(self) -> OpenedStep:
        self._step += 1
        return OpenedStep(self._step, self._step, self.version, None, simple=False)

    def _broken(self, error: BaseException) -> None:
        """Let the error through."""


def load(runner, state) -> None:
    for name in runner.weights.specs():
        runner.weights.writable(name)[:] = memoryview(state[name]).cast("B")


def ready(runner) -> None:
    """Do what an update's plan does besides loading."""
    if runner.deepep is not None:
        runner.deepep.recreate_buffer()
    for auxiliary in runner.auxiliaries:
        auxiliary.kv_cache.rebuild()
    runner.kv_cache.rebuild()
    for graphs in [runner.graphs, *(auxiliary.graphs for auxiliary in runner.auxiliaries)]:
        if graphs is not None:
            graphs.capture()
