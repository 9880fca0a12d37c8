"""What one rank remembers between two looks at the words, and the one way in which a move takes effect.

Shared by the parts of :mod:`.driver`: steps (:mod:`.stepping`), failures (:mod:`.failing`), endings
(:mod:`.ending`). It decides nothing, and knows no action.
"""

from __future__ import annotations

from wsm.clock import Clock
from wsm.errors import InternalError
from wsm.states import rank as protocol
from wsm.states.machine import LifeCycle
from wsm.states.phases import Event, Happened
from wsm.states.rank_state import Move, RankState
from wsm.states.view import View
from wsm.states.words import StepKind
from wsm.worker.execution import Execution
from wsm.worker.group_words import GroupWords
from wsm.worker.patience import Patience
from wsm.worker.pause import Pause
from wsm.worker.recording import Recorder


class Standing:
    """Where one rank stands.

    Parameters
    ----------
    words : GroupWords
        The segment, seen by this rank.
    life : LifeCycle
        This rank's state machines.
    patience : Patience
        Told of every new phase.
    clock : Clock
        What the pause is measured by.
    recorder : Recorder
        Journal and log.

    Attributes
    ----------
    state : RankState
        What the protocol remembers.
    version : int or None
        The committed version that is held.
    execution : Execution or None
        The work of the command at hand, once it has begun.
    pause : Pause
        Since when this rank could not serve.
    may_enter : bool
        Whether the last turn of the loop said that a step may be entered.
    stepped : bool
        Whether a step was entered since the last turn.
    """

    def __init__(
        self, *, words: GroupWords, life: LifeCycle, patience: Patience, clock: Clock, recorder: Recorder
    ) -> None:
        self.words = words
        self.life = life
        self.recorder = recorder
        self.state = RankState(rank=words.rank, epoch=0)
        self.version: int | None = None
        self.execution: Execution | None = None
        self.pause = Pause(clock)
        self.may_enter = False
        self.stepped = False
        self._patience = patience

    @property
    def at_work(self) -> Execution:
        """The work of the command at hand.

        Raises
        ------
        InternalError
            If there is none: the protocol asked for something that cannot be.
        """
        if self.execution is None:
            raise InternalError(f"rank {self.state.rank} has no command at hand in {self.state.phase.value}")
        return self.execution

    def take(self, move: Move, source: View | Happened) -> None:
        """Write a move's words, and remember its state; `source` is the input that it answers.

        In this order: where a shortage cuts it short, the same move follows from what is remembered still,
        and is made again.
        """
        if move.state.phase is not self.state.phase:
            self._patience.begin()
        self.words.write(move)
        before, self.state = self.state, move.state
        if isinstance(source, Happened):
            self.recorder.happened(before, source, move)
        elif before.epoch == move.state.epoch:
            self.recorder.looked(before, source, move)
        else:
            self.recorder.joined(move, source)
        if move.step is not None and move.step.kind is StepKind.PARKED and self.life.serving:
            self.pause.begin()
        if move.status is not None or (move.step is not None and move.step.kind is not StepKind.RUNNING):
            self.recorder.wrote(move)

    def take_in(
        self,
        event: Event,
        *,
        collective: tuple[bool, ...] = (),
        touched: bool = False,
        serves: bool = True,
        step: int = 0,
    ) -> None:
        """Tell the protocol what happened, with the machines' present codes, and take what follows."""
        weights, kv = int(self.life.weights), int(self.life.kv)
        happened = Happened(
            event, weights, kv, collective=collective, touched=touched, serves=serves, step=step
        )
        self.take(protocol.take_in(self.state, happened), happened)
