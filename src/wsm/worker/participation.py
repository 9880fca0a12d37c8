"""What a participant of a group is made of, a rank or a KV-cache process: put together, and joined.

Responsible for the order in which the parts come about, and for leaving nothing behind if one of them cannot.
Knows no loop and no steps: the shells (:mod:`.worker`, :mod:`.cache_participant`) do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from wsm.actions.plan import Plans
from wsm.actions.surfaces import Runner
from wsm.clock import Clock
from wsm.config import WsmConfig
from wsm.states.machine import LifeCycle
from wsm.strategies.snapshot.version_pins import VersionPins
from wsm.worker.announced import AnnouncedVersion, Find
from wsm.worker.attaching import Attachment
from wsm.worker.driver import RankDriver
from wsm.worker.execution import Load
from wsm.worker.execution_factory import ExecutionFactory
from wsm.worker.group_words import GroupWords
from wsm.worker.holding import Holding
from wsm.worker.patience import Patience
from wsm.worker.recording import Recorder
from wsm.worker.reporting import Reporter
from wsm.worker.watch import ActionWatch


@dataclass(frozen=True)
class Work:
    """What a participant does in a command.

    Parameters
    ----------
    runner : Runner
        Its surfaces.
    plans : Plans
        What is done with them.
    load : callable
        What a load action loads with.
    find : callable or None
        Says which version an update means that names none; None where nobody can know.
    holding : Holding
        What it holds between commands: nothing yet.
    facts : mapping
        What every report of it says besides.
    pins : VersionPins or None
        Keeps a version from the moment when a command names it.
    """

    runner: Runner
    plans: Plans
    load: Load
    find: Find | None = None
    holding: Holding = field(default_factory=Holding)
    facts: Mapping[str, Any] = field(default_factory=dict)
    pins: VersionPins | None = None


@dataclass(frozen=True)
class Participation:
    """A participant that has joined its group."""

    attachment: Attachment
    words: GroupWords
    recorder: Recorder
    watch: ActionWatch
    driver: RankDriver

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self.driver.leave()
        self.attachment.close()
        self.recorder.close()


def join_group(
    undo: ExitStack,
    config: WsmConfig,
    index: int,
    *,
    work: Work,
    clock: Clock,
    attach: Callable[[], Attachment],
) -> Participation:
    """Attach to the group's segment and join it. Blocks until there is one, `attach_s` at most.

    Parameters
    ----------
    undo : ExitStack
        Takes what must be undone if this, or whatever the caller does next, fails.
    config : WsmConfig
        The group's configuration.
    index : int
        The participant.
    work : Work
        What it does in a command.
    clock : Clock
        For deadlines and for the seconds in receipts.
    attach : callable
        Registers the participant in the right segment.

    Raises
    ------
    wsm.errors.WsmError
        As `attach`, and if the participant may not join this epoch.
    """
    recorder = Recorder(rank=index, clock=clock, directory=config.journal_directory)
    undo.callback(recorder.close)
    attachment = attach()
    undo.callback(attachment.abandon)
    segment = attachment.segment
    words = GroupWords(segment, index, clock)
    recorder.keep_in(segment.journal(index))
    watch = ActionWatch(index, words.presence, work.plans, clock)
    life = LifeCycle()
    driver = RankDriver(
        words=words,
        life=life,
        executions=ExecutionFactory(
            words=words,
            runner=work.runner,
            plans=work.plans,
            load=work.load,
            life=life,
            clock=clock,
            recorder=recorder,
            announced=AnnouncedVersion(segment, index, work.find),
            watch=watch,
            holding=work.holding,
            facts=work.facts,
            pins=work.pins,
        ),
        reporter=Reporter(segment, index, watch.declaration()),
        patience=Patience(config.deadlines, clock, work.runner.requests),
        clock=clock,
        recorder=recorder,
        watch=watch,
    )
    driver.join()
    return Participation(attachment, words, recorder, watch, driver)
