"""A rank's access to the group's segment: read a view, write its own words and payloads, wait for a change.

Between :mod:`wsm.signals` (memory) and :mod:`wsm.states` (rules): it knows neither states nor actions.
"""

from __future__ import annotations

from collections.abc import Callable

from wsm.clock import Clock, SystemClock
from wsm.command import RankReport
from wsm.signals.presence import PresenceWords
from wsm.signals.segment import Segment
from wsm.signals.waiting import ViewReader, Watch, WordsRead, wait, wake
from wsm.states.phases import Move, RankState
from wsm.states.view import View
from wsm.states.words import CommandWord, StatusCode, StatusWord, StepKind


class GroupWords:
    """The words of a group, seen by one participant.

    `presence`: what this rank is doing, for other processes. `meanwhile`: as of :class:`wsm.Worker`.
    """

    def __init__(self, segment: Segment, rank: int, clock: Clock | None = None) -> None:
        layout = segment.layout
        self.segment = segment
        self.rank = rank
        self.words = segment.words
        self.command = layout.command
        self.step = layout.step[rank]
        self.status = layout.status[rank]
        self.presence = PresenceWords(segment.words, layout.heartbeat[rank])
        self._clock = clock or SystemClock()
        self.meanwhile: Callable[[float], object] | None = None
        self._said: StatusWord | None = None  # the status that was written last
        #: Reads every word once, one after the other.
        self.read: Callable[[], WordsRead] = ViewReader(segment).read
        self.steps = layout.step[: segment.world_size]
        self.statuses = layout.status
        self.peer_steps = tuple(index for index in self.steps if index != self.step)

    def view(self) -> View:
        """Read every word once, for the rules alone."""
        return self.read().view

    def called_off(self, epoch: int) -> bool:
        """Whether the command of `epoch` is to be stopped: the group has decided against it, or ended."""
        command = CommandWord.unpack(self.words[self.command])
        return command.operation.is_abort or command.epoch != epoch

    def wait(self, read: WordsRead, timeout_s: float) -> bool:
        """Wait until a word of the controller or a peer differs from what was read.

        Blocks up to `timeout_s` seconds.
        """
        watches = [Watch(self.command, high=False, seen=read.command)]
        for index, word in zip(self.steps, read.steps, strict=True):
            if index != self.step:
                watches.append(Watch(index, high=True, seen=word))
        for index, word in zip(self.statuses, read.statuses, strict=True):
            if index != self.status:
                watches.append(Watch(index, high=False, seen=word))
        if self.meanwhile is not None:
            self.meanwhile(timeout_s)
            return False
        return wait(self.segment, watches, timeout_s)

    def pause(self, timeout_s: float) -> None:
        """Sleep where there is no word to wait for."""
        wait(self.segment, [], timeout_s)

    def write(self, move: Move) -> None:
        """Store the words of a move, the step word first, and wake those who wait for what they say."""
        words, step, status = self.words, move.step, move.status
        step_word = None if step is None else step.pack()
        status_word = None if status is None else status.pack()
        known = 0  # votes that were given already
        if status is not None and self._said is not None and self._said[:2] == status[:2]:
            known = self._said.ready
        if step_word is not None:
            words[self.step] = step_word
        if status_word is not None:
            words[self.status], self._said = status_word, status
        if step is not None and step.kind is not StepKind.RUNNING and self.peer_steps:
            wake(self.segment, self.step, high=True)
        if status is not None:
            self.presence.told(self._clock.monotonic_ns())
            # No process waits for DRAINING, PARKING or ACCEPTED, and a wake-up costs a context switch.
            if status.ready > known or status.code >= StatusCode.PREPARED:
                wake(self.segment, self.status)

    def beat(self) -> None:
        """Show that this rank makes progress."""
        self.presence.beat(self._clock.monotonic_ns())

    def reached(self, state: RankState, code: StatusCode, report: RankReport, *, loads: bool = False) -> None:
        """Write what was done for the command of `state`, before the word that says so.

        A load that was committed has a slot of its own: what it brought can be asked for until the next such
        load, whatever is held, released, prepared, fails or is given back in between.
        """
        committed = loads and code is StatusCode.DONE_COMMITTED
        segment, rank = self.segment, self.rank
        slot = segment.last_commits[rank] if committed else segment.reports[rank]
        slot.write(state.epoch, state.sequence, code, report.to_bytes())
