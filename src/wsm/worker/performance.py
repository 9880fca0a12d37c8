"""Running one action and firing one event, each journalled and timed: what every kind of execution does.

Between an execution (:mod:`.execution`, :mod:`.hot_execution`), which knows what comes next, and actions and
machines. It knows no plan and no words.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.clock import Clock
from wsm.report import ActionSeconds, RankReport
from wsm.states.command_events import CacheChange, Course, followed
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVEvent, WeightEvent
from wsm.worker.recording import Recorder
from wsm.worker.watch import ActionWatch

_CACHE_CHANGES = {
    names.RELEASE_KV_CACHE: CacheChange.RELEASED,
    names.REBUILD_KV_CACHE: CacheChange.READY,
    names.FORGET_KV_CACHE: CacheChange.READY,
}

_LOADS = (names.LOAD_WEIGHTS, names.STAGE_WEIGHTS)


class Performance:
    """What was done for one command so far.

    Parameters
    ----------
    life : LifeCycle
        This rank's state machines; this object fires them.
    context : ActionContext
        Handed to every action.
    clock : Clock
        For the seconds in the report.
    recorder : Recorder
        Journal and log.
    cause : str
        What records give as the reason of a transition that has no other.
    watch : ActionWatch
        Told which action is at hand.

    Attributes
    ----------
    began : list of Action
        What was begun, for undoing.
    inside : Action or None
        The action whose own work was entered, and has not returned.
    """

    def __init__(
        self,
        *,
        life: LifeCycle,
        context: ActionContext,
        clock: Clock,
        recorder: Recorder,
        cause: str,
        watch: ActionWatch,
    ) -> None:
        self.began: list[Action] = []
        self.inside: Action | None = None
        self._life = life
        self._context = context
        self._clock = clock
        self._recorder = recorder
        self._cause = cause
        self._watch = watch
        self._seconds: list[ActionSeconds] = []

    def run(self, action: Action) -> None:
        """Run an action and measure that it is done; whatever it raises is journalled and passed on."""
        self.inside = None
        began_ns = self.started(action)
        try:
            self.inside = action
            action.run(self._context)
            action.probe(self._context)
            self.inside = None
            self.finished(action, began_ns)
        except BaseException as error:
            self.failed(action, error)
            raise

    def started(self, action: Action, *, beside: bool = False) -> int:
        """Take in that an action begins now, perhaps beside the serving loop; return the time."""
        began_ns = self._clock.monotonic_ns()
        self.began.append(action)
        self._watch.begins(action, beside=beside)
        self._recorder.action_started(action.name)  # last: what begins in the journal ends there, too
        return began_ns

    def failed(self, action: Action, error: BaseException) -> None:
        """Take in that an action raised."""
        self._watch.ends()
        self._recorder.action_failed(action.name, error)

    def finished(self, action: Action, began_ns: int, *, ended_ns: int | None = None) -> None:
        """Take in that an action which began at `began_ns` is done, and probed; None: now."""
        self._watch.ends()
        seconds = ((self._clock.monotonic_ns() if ended_ns is None else ended_ns) - began_ns) / 1e9
        self._seconds.append(ActionSeconds(action.name, seconds))
        version = self._context.facts.get("version") if action.name in _LOADS else None
        self._recorder.action_finished(action.name, seconds, version)

    def fire(
        self, event: WeightEvent | KVEvent, *, kept: bool = False, kv_kept: bool = True, cause: str = ""
    ) -> None:
        """Take an event in by the machines; its refusal is raised."""
        self._recorder.transition(
            self._life.fire(
                event,
                at_ns=self._clock.monotonic_ns(),
                epoch=self._context.epoch,
                sequence=self._context.sequence,
                kept=kept,
                kv_kept=kv_kept,
                cause=cause or self._cause,
            )
        )

    def follow(self, course: Course) -> None:
        """Take a course of events in; the refusal of one is raised."""
        for fired in course.fired:
            self.fire(fired.event, kept=fired.kept, kv_kept=fired.kv_kept, cause=fired.cause)

    def kv_followed(self, action: str) -> None:
        """Let the KV cache's machine follow an action that has changed it."""
        change = _CACHE_CHANGES.get(action)
        if change is not None:
            self.follow(followed(self._life.joint, change))

    def report(self) -> RankReport:
        """Describe what was done so far."""
        facts = dict(self._context.facts)
        return RankReport(
            rank=self._context.rank,
            version=facts.pop("version", None),
            manifest_digest=facts.pop("manifest_digest", None),
            digest=facts.pop("digest", None),
            bytes=facts.pop("bytes", 0),
            tensors=facts.pop("tensors", 0),
            actions=tuple(self._seconds),
            bases=tuple(facts.pop("bases", ())),
            facts=facts,
        )
