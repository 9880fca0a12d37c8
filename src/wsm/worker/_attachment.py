"""From a configuration to a participant that has joined its group, in the right segment, until it leaves.

The traps here are all about old segments: one that a dead owner left, one of another run or another
configuration, one that is created anew while a process is attached to it. Responsible for the order in which
a participant's parts come about, too, and for leaving nothing behind if one of them cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path

from wsm.clock import Clock
from wsm.config import ConfigurationError, WsmConfig
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.group_segment import own_group
from wsm.signals.errors import SegmentMissingError, SegmentOwnedError, SegmentReplacedError
from wsm.signals.liveness import Registration, register
from wsm.signals.ownership import OWNER_BYTE
from wsm.signals.segment import Segment
from wsm.worker._command import Work
from wsm.worker._loop import RankLoop
from wsm.worker._watchdog import Watchdog
from wsm.worker.errors import WaitExpiredError
from wsm.worker.recording import Recorder

_LONGEST_PAUSE_S = 0.02

#: Turns without anything to do between two looks at whether the segment is still the one at its path.
_TURNS_BETWEEN_CHECKS = 200


class Attachment:
    """One participant that has joined its group: its slot, its loop, and the watchdog beside it.

    Blocks until there is a segment, `attach_s` at most. Rank 0 creates it where no supervisor did; the others
    wait for it. With `meanwhile` no thread is beside the loop.

    Raises
    ------
    ConfigurationError
        If the segment is of another run or another configuration.
    WaitExpiredError
        If no usable segment appeared in time.
    wsm.signals.errors.SlotTakenError
        If a live process stands for the participant.
    WsmError
        If the participant may not join this epoch.
    """

    def __init__(
        self,
        config: WsmConfig,
        index: int,
        directory: str | Path | None,
        *,
        work: Work,
        clock: Clock,
        meanwhile: Callable[[float], object] | None = None,
    ) -> None:
        self._turns = 0
        with ExitStack() as undo:
            recorder = Recorder(rank=index, clock=clock, directory=config.journal_directory)
            undo.callback(recorder.close)
            self.segment, self._registration = segment, _ = _attach(config, index, directory)
            undo.callback(self._leave, adopted=False)
            recorder.keep_in(segment.journals[index])
            self.loop = loop = RankLoop(segment, index, work, config.deadlines, recorder)
            loop.words.meanwhile = meanwhile
            loop.join()
            abandoned = AbandonedCommands(
                segment, who=_who(config, index), clock=clock, journal_directory=config.journal_directory
            )
            state = partial(attrgetter("state"), loop)
            self.watchdog = Watchdog(
                loop.words, loop.watch, work.runner.groups, recorder, state, abandoned=abandoned
            )
            if meanwhile is not None:
                self.watchdog.close()  # no test could say when its thread looks
            undo.pop_all()

    def check(self, *, now: bool = False) -> None:
        """Notice on idle turns that the segment was created anew: no process reads the old one.

        Looks every few hundred turns, or `now`.

        Raises
        ------
        SegmentReplacedError
            If it was, and no command is at hand; the process should attach anew.
        """
        self._turns += 1
        if self.loop.state.sequence or (self._turns % _TURNS_BETWEEN_CHECKS and not now):
            return
        if self.segment.inode_changed():
            raise SegmentReplacedError(path=str(self.segment.path))

    def close(self, *, adopted: bool = True) -> None:
        """Leave the slot and the segment, which its owner removes, an `adopted` one too. Idempotent."""
        self.watchdog.close()
        self.loop.close()
        self._leave(adopted=adopted)

    def _leave(self, *, adopted: bool) -> None:
        if self.segment.is_closed:
            return
        self._registration.release()
        if self.segment.is_owner and (adopted or not self.segment.adopted):
            self.segment.unlink()
        self.segment.close()


def _attach(config: WsmConfig, rank: int, directory: str | Path | None) -> tuple[Segment, Registration]:
    began, pause = time.monotonic(), 0.0005
    while True:
        segment = _find(config, rank, directory)
        if segment is not None:
            try:
                return segment, register(segment, rank)
            except SegmentReplacedError:
                segment.close()
            except BaseException:
                segment.close()
                raise
        waited = time.monotonic() - began
        if waited > config.deadlines.attach_s:
            raise WaitExpiredError(
                rank=rank,
                wait="attach",
                seconds=waited,
                waiting_for=f"the segment of group {config.name!r} (run {config.run_id or 'any'})",
            )
        time.sleep(pause)  # there is no word to wait on before there is a segment
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def _find(config: WsmConfig, rank: int, directory: str | Path | None) -> Segment | None:
    """Return the group's segment; None if it is missing, of another run, ownerless or not begun yet."""
    segment = None
    if rank == 0:
        with suppress(SegmentOwnedError):
            segment = own_group(config, directory=directory)
    try:
        segment = segment or Segment.attach(config.name, world_size=config.ranks, directory=directory)
    except SegmentMissingError:
        return None
    # A dead run's segment is left alone: attaching would block its re-creation.
    alive = segment.is_owner or _its_owner_lives(segment)
    of_this_run = not config.run_id or config.run_id == segment.run_id
    begun = segment.words[segment.layout.command] != 0
    if alive and segment.configuration_digest != config.group_digest():
        segment.close()
        raise ConfigurationError(
            where=f"group {config.name!r}",
            problem=f"{_who(config, rank)} was told something else about the group than its segment's owner",
            fix="give all ranks and the supervisor the same name, ranks, communicators, strategy and options",
        )
    if alive and of_this_run and begun:
        return segment
    segment.close()
    return None


def _its_owner_lives(segment: Segment) -> bool:
    """Whether the byte's holder owns this segment: a next owner takes the byte before it replaces that."""
    owner, holder = segment.owner, segment.lock_file.holder(OWNER_BYTE)
    if owner is None or holder is None:
        return False
    return holder == owner.pid or not owner.is_visible


def _who(config: WsmConfig, participant: int) -> str:
    return f"rank {participant}" if participant < config.ranks else "the KV-cache process"
