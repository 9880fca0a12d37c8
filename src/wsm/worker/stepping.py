"""How a rank enters a step, and what it says when one raised.

Only where the last turn allowed it, with a verified version in hand. Knows no commands.
"""

from __future__ import annotations

from collections.abc import Callable

from wsm.report import STEP
from wsm.states import rank as protocol
from wsm.states.phases import Event
from wsm.states.rank_state import Phase
from wsm.states.words import StepKind, StepWord
from wsm.worker.errors import NotServingError
from wsm.worker.standing import Standing


class Stepping:
    """The steps of one rank that are opened the slow way.

    Parameters
    ----------
    standing : Standing
        Where the rank stands.
    fail : callable
        ``fail(doing, error)``: fails the command at hand.
    """

    def __init__(self, standing: Standing, fail: Callable[[str, BaseException], None]) -> None:
        self._standing = standing
        self._fail = fail

    def enter(self) -> tuple[int, int]:
        """Store RUNNING for the next step; return the word and the version that makes the step.

        Raises
        ------
        NotServingError
            If this rank may not step now.
        """
        standing = self._standing
        state, life, version = standing.state, standing.life, standing.version
        if state.broken:
            raise NotServingError(rank=state.rank, why=f"step {state.step} raised")
        if not life.serving or version is None or state.accepted or not state.holds:
            why = f"weights {life.weights.name}, KV cache {life.kv.name}, {state.phase.value}"
            raise NotServingError(rank=state.rank, why=why)
        if not standing.may_enter:
            # A rank that stands for a command and steps all the same would step beside ranks that accept it.
            raise NotServingError(
                rank=state.rank, why=f"the last poll() did not say so ({state.phase.value})"
            )
        standing.may_enter = False
        standing.stepped = True
        standing.take_in(Event.ENTERED)
        return StepWord(state.epoch, state.done, StepKind.RUNNING, standing.state.step).pack(), version

    def stepped_to(self, step: int) -> None:
        """Take in that steps up to number `step` were opened without this object."""
        self._standing.stepped = True
        self._standing.take_in(Event.ENTERED, step=step)

    def broke(self, error: BaseException) -> None:
        """Store BROKEN: the step raised, so nobody knows which of its collectives were run."""
        standing = self._standing
        standing.take_in(Event.BROKE)
        standing.recorder.step_broken(standing.state.epoch, standing.state.step, error)
        if standing.state.phase is not Phase.IDLE and protocol.may_fail(standing.state):
            self._fail(STEP, error)
