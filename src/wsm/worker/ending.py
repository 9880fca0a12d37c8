"""How a command ends on one rank: committed, taken back, kept, given back, or overtaken by a new epoch.

Each method does what the protocol asked for and tells it what came of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wsm.clock import Clock
from wsm.commit_report import commit_report
from wsm.shortage import shortage_of
from wsm.states.phases import Event
from wsm.states.vocabulary import KVPolicy, WeightState
from wsm.states.words import StatusCode
from wsm.worker.errors import TeardownFailedError
from wsm.worker.execution_factory import ExecutionFactory
from wsm.worker.failing import Failing
from wsm.worker.reporting import Reporter
from wsm.worker.standing import Standing

#: How long a rank that leaves its epoch waits for its staging thread to end, in seconds.
_LEAVE_S = 1.0


class Ending:
    """The ends of one rank's commands.

    Parameters
    ----------
    standing : Standing
        Where the rank stands.
    executions : ExecutionFactory
        Makes the work that brings a rank to an end that had not begun.
    reporter : Reporter
        This rank's payload slots.
    failing : Failing
        For a flip that must not fail, and does.
    clock : Clock
        For times in records.
    join : callable
        Enters the epoch that the command word names.
    """

    def __init__(
        self,
        standing: Standing,
        executions: ExecutionFactory,
        reporter: Reporter,
        failing: Failing,
        *,
        clock: Clock,
        join: Callable[[], None],
    ) -> None:
        self._standing = standing
        self._executions = executions
        self._reporter = reporter
        self._failing = failing
        self._clock = clock
        self._join = join

    def rejoin(self) -> None:
        """A new epoch has begun: whatever this rank held belonged to the old one, and is given back first.

        Raises
        ------
        TeardownFailedError
            If it could not be given back: nobody may take this rank for an empty one.
        MemoryError, OSError, RuntimeError
            If that was for want of memory, descriptors or threads; to be tried again.
        """
        standing = self._standing
        state = standing.state
        if standing.life.serving:
            standing.pause.begin()
        if standing.execution is not None:
            standing.execution.stop_staging(wait_s=_LEAVE_S)
        execution = self._executions.leaving(state)
        self._executions.booted = False
        execution.abandon()
        while (released := execution.drop()) is None:
            standing.words.beat()
        if not released:
            failure = execution.teardown_failure
            if failure is not None and shortage_of(failure) is not None:
                raise failure  # it is tried again by the next turn, for as long as the supervisor waits
            raise TeardownFailedError(rank=state.rank, epoch=state.epoch) from failure
        for record in standing.life.lose(
            at_ns=self._clock.monotonic_ns(), epoch=state.epoch, sequence=state.sequence
        ):
            standing.recorder.transition(record)
        standing.version = standing.execution = None
        self._executions.holding.settled(standing.life)
        self._keep_what_is_committed()
        self._join()

    def commit(self) -> None:
        """Serve the new version, or hold what has come where something is missing still.

        What an ordinary commit raises goes to the embedding loop: a bug there. For want of memory,
        descriptors or threads it is tried again by the next turn, a flip too whose own work was not begun.

        Raises
        ------
        FlipFailedError
            If the flip of a hot update raised.
        """
        standing = self._standing
        execution = standing.at_work
        try:
            execution.commit()
        except Exception as error:
            if execution.is_mixed and not (execution.may_go_on and shortage_of(error)):
                self._failing.broke_in_flip(error)
            raise
        self._executions.booted |= standing.life.weights is WeightState.NORMAL
        report = execution.report()
        serves = standing.life.serving
        standing.version = report.version
        self._executions.holding.committed(report)
        pause_s = standing.pause.end() if serves else standing.pause.so_far()
        self._reporter.reached(standing.state, StatusCode.DONE_COMMITTED, replace(report, pause_s=pause_s))
        standing.take_in(Event.COMMITTED, serves=serves)
        standing.execution = None
        if serves and standing.version is not None:
            standing.recorder.served(standing.state.epoch, standing.state.done, standing.version)
        self._executions.pins.keep((report.version, *report.bases))

    def leave(self) -> None:
        """Stop what still runs beside the loop: the rank leaves its group. Blocks a second at most."""
        if self._standing.execution is not None:
            self._standing.execution.stop_staging(wait_s=_LEAVE_S)

    def undo(self) -> None:
        """Stop, and take back what can be taken back."""
        standing = self._standing
        touched = standing.execution.undo() if standing.execution is not None else False
        standing.take_in(Event.STOPPED, touched=touched)

    def settle(self) -> None:
        """Bring an aborted command to the end that the group has found; a teardown takes several calls."""
        standing = self._standing
        dropping = standing.state.touched
        execution = standing.execution = standing.execution or self._executions.ending(standing.state)
        done = execution.drop() if dropping else execution.keep()
        if done is None:
            return
        if standing.life.serving:
            standing.pause.end()
        kept = dropping and execution.report().facts.get("kv_policy") == KVPolicy.KEEP.value
        self._executions.holding.settled(standing.life, blocks_kept=kept)
        standing.version = self._executions.holding.version
        ended = Event.CLEARED if dropping else Event.KEPT
        standing.take_in(ended if done else Event.FAULTED)
        standing.execution = None
        self._keep_what_is_committed()

    def _keep_what_is_committed(self) -> None:
        """Pin no other version any more than what the group may have to load again."""
        words = self._standing.words
        committed = words.view().committed
        report = commit_report(words.segment, words.rank, committed.sequence)
        self._executions.pins.keep((committed.version, *(() if report is None else report.bases)))
