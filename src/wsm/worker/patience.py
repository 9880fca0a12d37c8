"""How long a rank waits in each phase, for whom, and what it says when that was too long.

Knows phases and deadlines; what an expired wait leads to is the protocol's matter.
"""

from __future__ import annotations

from wsm.actions.surfaces import RequestSurface
from wsm.clock import Clock
from wsm.config import Deadlines
from wsm.states.rank_state import Phase, RankState
from wsm.states.view import View
from wsm.states.words import StepKind
from wsm.worker.errors import WaitExpiredError
from wsm.worker.execution import Execution


class Patience:
    """The deadline of the phase that a rank is in.

    Parameters
    ----------
    deadlines : Deadlines
        As configured.
    clock : Clock
        What is waited by.
    requests : RequestSurface
        Whom a drain waits for.
    """

    def __init__(self, deadlines: Deadlines, clock: Clock, requests: RequestSurface) -> None:
        self._deadlines = deadlines
        self._clock = clock
        self._requests = requests
        self._since_ns = clock.monotonic_ns()
        self._told = False

    def begin(self) -> None:
        """A new phase begins."""
        self._since_ns = self._clock.monotonic_ns()
        self._told = False

    def expired(self, state: RankState, view: View, execution: Execution | None) -> WaitExpiredError | None:
        """Return the report of a wait that has passed its deadline; once per phase."""
        limit = self._limit_s(state, execution)
        waited = (self._clock.monotonic_ns() - self._since_ns) / 1e9
        if self._told or limit is None or waited < limit:
            return None
        self._told = True
        return WaitExpiredError(
            rank=state.rank,
            wait=state.phase.value,
            seconds=waited,
            waiting_for=self._waiting_for(state, view),
        )

    def _limit_s(self, state: RankState, execution: Execution | None) -> float | None:
        if state.phase is Phase.VOTING:
            return execution.plan.actions[state.action].deadline_s if execution is not None else None
        return {
            Phase.BEGINNING: self._deadlines.arguments_s,
            Phase.DRAINING: self._deadlines.drain_s,
            Phase.PARKING: self._deadlines.park_s,
            Phase.PREPARED: self._deadlines.decision_s,
            Phase.FAILED: self._deadlines.decision_s,
            Phase.STOPPED: self._deadlines.decision_s,
        }.get(state.phase)

    def _waiting_for(self, state: RankState, view: View) -> str:
        """Name who or what the rank waits for."""
        if state.phase is Phase.PARKING:
            here = (StepKind.PARKED, state.sequence, state.step)
            late = [r for r, word in enumerate(view.steps) if (word.kind, word.sequence, word.step) != here]
            return f"rank {', '.join(map(str, late))} to park"
        if state.phase is Phase.VOTING:
            late = [r for r, word in enumerate(view.statuses) if word.ready <= state.action]
            return f"rank {', '.join(map(str, late))} to be ready"
        if state.phase is Phase.STOPPED:
            return "the other ranks to stop"
        if state.phase is Phase.DRAINING:
            return f"{self._requests.in_flight()} requests to finish"
        if state.phase is Phase.BEGINNING:
            return "the command's arguments, and rank 0's word which version they mean if they name none"
        return "the controller's decision"
