"""Requests for contracts and machines: how those of wsm.testing are put in, served and counted."""

from __future__ import annotations

import wsm
from wsm.testing import EngineUnderTest


class InMemoryWork(EngineUnderTest):
    """An engine with :class:`wsm.testing.InMemoryRequests`, whose loop steps only where it has work."""

    def turn(self, worker, runner):
        turn = worker.poll()
        if turn is wsm.JOIN or (turn is wsm.SERVE and runner.requests.has_work()):
            with worker.step():
                runner.requests.advance()

    def submit(self, runner, steps):
        runner.requests.submit(steps)

    def answered(self, runner):
        return runner.requests.finished + runner.requests.aborted
