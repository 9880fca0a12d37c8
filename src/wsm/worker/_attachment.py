"""From a configuration to a participant that has joined its group, in the right segment.

The traps here are all about old segments: one that a dead owner left, one of another run or another
configuration, one that is created anew while a process is attached to it. Responsible for the order in which
a participant's parts come about, too, and for leaving nothing behind if one of them cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
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
    """Hold one slot of one segment.

    Parameters
    ----------
    segment : Segment
        Attached or owned.
    registration : Registration
        Of this rank.
    """

    def __init__(self, segment: Segment, registration: Registration) -> None:
        self.segment = segment
        self._registration = registration
        self._turns = 0

    def check(self, sequence: int, *, now: bool = False) -> None:
        """Notice on idle turns that the segment was created anew: no process reads the old one.

        Looks every few hundred turns, or `now`.

        Raises
        ------
        SegmentReplacedError
            If it was, and no command (`sequence` 0) is at hand; the process should attach anew.
        """
        self._turns += 1
        if sequence or (self._turns % _TURNS_BETWEEN_CHECKS and not now):
            return
        if self.segment.inode_changed():
            raise SegmentReplacedError(path=str(self.segment.path))

    def close(self) -> None:
        """Leave the slot and the segment; the owner removes it. Idempotent."""
        self._leave(remove=self.segment.is_owner)

    def abandon(self) -> None:
        """Leave before having joined: what was made here is removed, what others live in is left to them."""
        self._leave(remove=self.segment.is_owner and not self.segment.adopted)

    def _leave(self, *, remove: bool) -> None:
        if self.segment.is_closed:
            return
        self._registration.release()
        if remove:
            self.segment.unlink()
        self.segment.close()


def attach_rank(config: WsmConfig, rank: int, directory: str | Path | None = None) -> Attachment:
    """Stand for `rank` in the group's segment. Blocks until it is there, up to the configured deadline.

    Rank 0 creates it where no supervisor did; the others wait for it.

    Raises
    ------
    ConfigurationError
        If the segment is of another run or another configuration, or the rank is none of the group.
    WaitExpiredError
        If no usable segment appeared in time.
    wsm.signals.errors.SlotTakenError
        If a live process stands for the rank.
    """
    if not 0 <= rank < config.ranks:
        raise ConfigurationError(
            where="rank",
            problem=f"{rank} is none of {config.ranks} ranks",
            fix=f"give 0 to {config.ranks - 1}",
        )
    return _attach(config, rank, directory)


def attach_cache_process(config: WsmConfig, directory: str | Path | None = None) -> Attachment:
    """Stand for the KV-cache process in the group's segment; otherwise as :func:`attach_rank`.

    Raises
    ------
    ConfigurationError
        If the group has none, besides what :func:`attach_rank` raises.
    """
    if not config.kv_cache_process:
        raise ConfigurationError(
            where=f"group {config.name!r}",
            problem="has no KV-cache process",
            fix="set kv_cache_process: true, for all ranks and the supervisor",
        )
    return _attach(config, config.ranks, directory)


def join_group(
    undo: ExitStack,
    config: WsmConfig,
    index: int,
    *,
    work: Work,
    clock: Clock,
    attach: Callable[[], Attachment],
) -> tuple[Attachment, RankLoop, Watchdog]:
    """Attach to the group's segment, join it, and watch over the participant from then on.

    Blocks until there is a segment, `attach_s` at most.

    Parameters
    ----------
    undo : ExitStack
        Takes what must be undone if this, or what the caller does next, fails.
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
    WsmError
        As `attach`, and if the participant may not join this epoch.
    """
    recorder = Recorder(rank=index, clock=clock, directory=config.journal_directory)
    undo.callback(recorder.close)
    attachment = attach()
    undo.callback(attachment.abandon)
    segment = attachment.segment
    recorder.keep_in(segment.journal(index))
    loop = RankLoop(segment, index, work=work, deadlines=config.deadlines, clock=clock, recorder=recorder)
    loop.join()
    abandoned = AbandonedCommands(
        segment, who=_who(config, index), clock=clock, journal_directory=config.journal_directory
    )
    state = partial(attrgetter("state"), loop)
    watchdog = Watchdog(loop.words, loop.watch, work.runner.groups, recorder, state, abandoned=abandoned)
    undo.callback(watchdog.close)
    return attachment, loop, watchdog


def _attach(config: WsmConfig, rank: int, directory: str | Path | None) -> Attachment:
    began, pause = time.monotonic(), 0.0005
    while True:
        segment = _find(config, rank, directory)
        if segment is not None:
            try:
                return Attachment(segment, register(segment, rank))
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
    if rank == 0:
        try:
            segment = own_group(config, directory=directory)
        except SegmentOwnedError:
            pass
        else:
            return _of_this_run(config, segment)
    try:
        segment = Segment.attach(config.name, world_size=config.ranks, directory=directory)
    except SegmentMissingError:
        return None
    if segment.lock_file.holder(OWNER_BYTE) is None:
        # A dead run's segment: attaching would block its re-creation.
        segment.close()
        return None
    if segment.configuration_digest != config.group_digest():
        segment.close()
        raise ConfigurationError(
            where=f"group {config.name!r}",
            problem=f"{_who(config, rank)} was told something else about the group than its segment's owner",
            fix="give all ranks and the supervisor the same name, ranks, communicators, strategy and options",
        )
    return _of_this_run(config, segment)


def _of_this_run(config: WsmConfig, segment: Segment) -> Segment | None:
    """Return the segment, unless ranks of an earlier run still live in it or its owner has not begun."""
    other_run = bool(config.run_id) and segment.run_id != config.run_id
    if other_run or segment.words[segment.layout.command] == 0:
        segment.close()
        return None
    return segment


def _who(config: WsmConfig, participant: int) -> str:
    return f"rank {participant}" if participant < config.ranks else "the KV-cache process"
