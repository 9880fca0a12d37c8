"""How one rank leaves a command that is not to be: what it did is undone, or all that it holds is given back.

Called by :mod:`.execution`, when the group has decided. What was held before, and no more, is held after
:meth:`Retreat.keep`; nothing after :meth:`Retreat.drop`. It knows no words.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions.base import Action, ActionContext
from wsm.actions.sequence import Plans
from wsm.states.joint import START
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVEvent, KVState, PlanName, WeightEvent, WeightState
from wsm.worker.performance import Performance
from wsm.worker.recording import Recorder


class Retreat:
    """The ways out of one command on one rank.

    Parameters
    ----------
    plans : Plans
        Of this engine; the discard plans are run.
    life : LifeCycle
        This rank's state machines.
    context : ActionContext
        Handed to every action.
    work : Performance
        What was done so far.
    recorder : Recorder
        Journal and log.

    Attributes
    ----------
    accepted : bool
        Whether the machines have left the states of before the command; set by whoever fires them.
    """

    def __init__(
        self, plans: Plans, *, life: LifeCycle, context: ActionContext, work: Performance, recorder: Recorder
    ) -> None:
        self.accepted = False
        self._plans = plans
        self._life = life
        self._context = context
        self._work = work
        self._recorder = recorder
        self._kv_before = life.kv
        self._actions: Iterator[Action] | None = None

    def undo(self) -> bool:
        """Stop and take back what can be taken back; return whether this rank is not what it was before.

        A clear that has begun is never taken back: its end is CLEARED, on every rank.
        """
        torn = self._life.weights in (WeightState.CLEARING, WeightState.FAULTED)
        if torn or self._life.kv is KVState.CLEARING:
            self._context.weights_touched = True
        if self._context.weights_touched:
            return True
        for action in reversed(self._work.began):
            try:
                action.undo(self._context)
            except Exception as error:  # noqa: BLE001 - whatever an undo raises: the rank is not what it was
                self._recorder.action_failed(f"undo_{action.name}", error)
                self._context.weights_touched = True
                return True
            self._recorder.action_undone(action.name)
        self._work.began.clear()
        return False

    def keep(self) -> bool | None:
        """End a command that nobody was touched by, after it was undone. Returns as :meth:`drop` does."""
        if self._actions is not None or self._life.weights is WeightState.FAULTED:
            return self.drop()
        if not self.accepted:
            return True
        held = self._life.joint.held
        if self._life.weights is WeightState.PREPARED and held:
            self._work.fire(WeightEvent.ABORT, kept=True)
        self._restore_kv()
        if self._life.weights is WeightState.UPDATING and held:
            self._work.fire(WeightEvent.ABORT, kept=True)
        if self._life.weights in (WeightState.NORMAL, WeightState.CLEARED):
            return True
        return self._drop_weights() if self._kv_before is KVState.NORMAL else self.drop()

    def drop(self) -> bool | None:
        """Hold nothing, one action of the discard plan per call.

        Returns
        -------
        bool or None
            None while actions are left; True once everything is released, False if the teardown failed.
        """
        if self._actions is None:
            if self._life.joint == START:
                return True
            leaves = self._life.weights in (WeightState.NORMAL, WeightState.FAULTED)
            self._work.fire(WeightEvent.CLEAR if leaves else WeightEvent.ABORT)
            if self._life.kv is not KVState.CLEARED:
                self._work.fire(KVEvent.CLEAR)
            self._actions = iter(self._plans.discard.actions)
        return self._drop_on(self._actions)

    def _drop_weights(self) -> bool | None:
        """Give back what an update has begun to load beside a KV cache that stays."""
        self._work.fire(WeightEvent.ABORT)
        self._actions = iter(self._plans.named(PlanName.DISCARD_WEIGHTS).actions)
        return self._drop_on(self._actions)

    def _drop_on(self, actions: Iterator[Action]) -> bool | None:
        """Run the next action of a teardown."""
        action = next(actions, None)
        if action is None:
            if self._life.kv is KVState.CLEARING:
                self._work.fire(KVEvent.CLEARED)
            if self._life.weights is WeightState.CLEARING:
                self._work.fire(WeightEvent.CLEARED)
            return True
        try:
            self._work.run(action)
        except Exception as error:  # noqa: BLE001 - a teardown that fails in any way leaves the rank FAULTED
            self._work.fire(WeightEvent.FAIL, cause=f"{action.name}: {error}")
            return False
        if self._life.weights is WeightState.CLEARING:
            self._work.kv_followed(action.name)
        return None

    def _restore_kv(self) -> None:
        """Let the KV cache's machine say what undoing has left: what there was before."""
        if self._kv_before is KVState.CLEARED and self._life.kv is not KVState.CLEARED:
            self._work.fire(KVEvent.CLEAR, cause="what was built is given back")
            self._work.fire(KVEvent.CLEARED)
        elif self._life.kv is KVState.UPDATING:
            self._work.fire(KVEvent.REBUILT, cause="the old cache is still whole")
