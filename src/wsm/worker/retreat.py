"""How one rank leaves a command that is not to be: what it did is undone, or all that it holds is given back.

Called by :mod:`.execution`, when the group has decided. What was held before, and no more, is held after
:meth:`Retreat.keep`; after :meth:`Retreat.drop` nothing is, or nothing of the half that was to be cleared. It
knows no words.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions.base import Action, ActionContext
from wsm.actions.sequence import Plan, Plans
from wsm.states.joint import START
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import ALL_TAGS, KVEvent, KVState, PlanName, Tag, WeightEvent, WeightState
from wsm.worker.performance import Performance
from wsm.worker.recording import Recorder


class Retreat:
    """The ways out of one command on one rank.

    Parameters
    ----------
    plans : Plans
        Of this engine; the discard plans are run.
    gives_back : frozenset of Tag
        What every rank holds no more once the command is dropped. One half where a clear of it is dropped:
        somebody may be done with it, so all go on to the end. Empty: nobody knows.
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
    failure : Exception or None
        What the teardown raised that has failed.
    """

    def __init__(
        self,
        plans: Plans,
        gives_back: frozenset[Tag],
        *,
        life: LifeCycle,
        context: ActionContext,
        work: Performance,
        recorder: Recorder,
    ) -> None:
        self.accepted = False
        self.failure: Exception | None = None
        self._plans = plans
        self._gives_back = gives_back
        self._life = life
        self._context = context
        self._work = work
        self._recorder = recorder
        self._kv_before = life.kv
        self._was_faulted = life.weights is WeightState.FAULTED
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
            return self._drop_all()
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
        return self._drop_weights() if self._kv_before is KVState.NORMAL else self._drop_all()

    def drop(self) -> bool | None:
        """Hold nothing of what is to be given back, one action of a discard plan per call.

        Returns
        -------
        bool or None
            None while actions are left; True once all of it is released, False if the teardown failed, or if
            nobody knows what the others have given back: then this rank serves nothing until all is cleared.
        """
        if self._gives_back == ALL_TAGS:
            return self._drop_all()
        if self._actions is None:
            if self._was_faulted:
                return False
            if not self._gives_back:
                return self._cannot_tell()
            takes_weights = Tag.WEIGHTS in self._gives_back
            if not takes_weights and self._life.kv is KVState.CLEARED:
                return True
            if takes_weights and self._life.weights is WeightState.CLEARED:
                return True
            self._actions = iter(self._begin_half(takes_weights=takes_weights).actions)
        return self._drop_on(self._actions)

    def _begin_half(self, *, takes_weights: bool) -> Plan:
        """Begin, or go on, to give back one half; return the plan for it."""
        if not takes_weights:
            self._work.fire(KVEvent.CLEAR)
            return self._plans.named(PlanName.DISCARD_KV_CACHE)
        self._begin_with_weights()
        beside = self._life.kv is KVState.NORMAL
        return self._plans.named(PlanName.DISCARD_HELD_WEIGHTS if beside else PlanName.DISCARD)

    def _begin_with_weights(self) -> None:
        leaves = self._life.weights in (WeightState.NORMAL, WeightState.FAULTED)
        self._work.fire(WeightEvent.CLEAR if leaves else WeightEvent.ABORT)

    def _cannot_tell(self) -> bool:
        """Serve nothing, since keeping either half may be keeping what the others have not."""
        if self._life.joint == START:
            return True
        if self._life.weights is WeightState.NORMAL:
            self._work.fire(WeightEvent.CLEAR)
        else:
            self._work.fire(KVEvent.CLEAR)
        self._work.fire(WeightEvent.FAIL, cause="the command's arguments cannot be read")
        return False

    def _drop_all(self) -> bool | None:
        if self._actions is None:
            if self._life.joint == START:
                return True
            self._begin_with_weights()
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
            self.failure = error
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
