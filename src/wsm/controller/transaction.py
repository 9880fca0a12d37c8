"""One open command, driven by a thread of its own until it is over.

The thread holds the controller role for as long as the command is open, so a caller that computes
between calls, or gives up waiting, leaves nobody undecided. What to write is decided by
:mod:`wsm.protocol.decide`; this module brings time, deaths and reports to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from wsm import log
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.controller import outcome
from wsm.controller.errors import UnsettledError
from wsm.controller.group_view import GroupView
from wsm.controller.pending import Pending
from wsm.errors import GroupError
from wsm.protocol import decide
from wsm.protocol.view import View
from wsm.receipt import Outcome, Receipt
from wsm.signals.lock_file import LockHold
from wsm.signals.word import CommandWord, Operation, StatusCode

#: Longest time between two looks at whether a process died, in seconds.
LOOK_S = 0.02

#: How long a decided command may take to be over on every rank before the caller is told, in seconds.
SETTLE_S = 30.0

#: How long the living may take to stop once another rank is dead, before the caller is told, in seconds.
LOST_S = 1.0

_STOPPED = frozenset((StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED))


class Transaction:
    """A command under way, as :class:`wsm.Controller` drives it.

    Parameters
    ----------
    group : GroupView
        The group.
    role : LockHold
        The controller role; given back when the command is over.
    command : CommandWord
        The word that was written.
    arguments : CommandArguments
        Its arguments.
    deadline_s : float
        Seconds from now after which an undecided command is aborted.
    settle_s : float
        Seconds after a decision until the caller is told who is not done.
    clock : Clock
        For both.
    on_over : callable
        Called in the driving thread, with the role still held, when the command has ended in any way.
    """

    def __init__(
        self,
        group: GroupView,
        role: LockHold,
        command: CommandWord,
        arguments: CommandArguments,
        *,
        deadline_s: float,
        settle_s: float,
        clock: Clock,
        on_over: Callable[[], object] = bool,
    ) -> None:
        self._group = group
        self._role = role
        self._command = command
        self._arguments = arguments
        self._deadline_s = deadline_s
        self._settle_s = settle_s
        self._clock = clock
        self._on_over = on_over
        self._began_ns = clock.monotonic_ns()
        self._decided_ns: int | None = None
        self._previous = group.view().committed.version
        self._give_up = threading.Event()
        self._gave_up = False
        self._late: dict[int, str] = {}
        self._lost: list[int] = []
        self._future: Future[Receipt] = Future()
        self._log = log.logger(
            "controller", epoch=command.epoch, sequence=command.sequence, request_id=arguments.request_id
        )

    def start(self) -> Pending:
        """Begin to drive, in a thread that ends with the command; it gives the role back then."""
        self._log.info(log.COMMAND_ISSUED, operation=self._command.operation.name)
        name = f"wsm-transaction-{self._command.sequence}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        return Pending(self._arguments.request_id, self._future, self._give_up.set)

    def complete(self) -> None:
        """Bring a command that a dead controller left open to its end, in this thread, with this role.

        An undecided one is committed if every rank is PREPARED, else aborted. Blocks up to the settle
        time. How it ends is for its own caller, who is dead; it is logged.
        """
        self._give_up.set()
        try:
            self._drive()
        except GroupError as error:
            self._log.warning(log.DECISION_COMPLETED, error=str(error))
        else:
            self._log.warning(log.DECISION_COMPLETED)

    def _run(self) -> None:
        try:
            try:
                receipt = self._drive()
            finally:
                self._end()
        except BaseException as error:  # noqa: BLE001 - the caller's thread gets it, whatever it is
            self._future.set_exception(error)
        else:
            self._future.set_result(receipt)

    def _end(self) -> None:
        try:
            self._on_over()
        finally:
            self._role.release()

    def _drive(self) -> Receipt:
        while True:
            watches = self._group.watches()
            view = self._group.view()
            if view.command.operation.is_decision and self._decided_ns is None:
                self._decided_ns = self._clock.monotonic_ns()  # by a controller that is dead
            if decide.is_over(view):
                break
            if not self._write_what_follows(view):
                self._raise_if_stuck(view)
                self._group.wait(watches, self._patience_s())
        if view.command.operation.is_commit:
            return self._receipt(Outcome.UPDATED, StatusCode.DONE_COMMITTED)
        if view.command.operation is Operation.CLEAR:
            return self._receipt(Outcome.CLEARED, StatusCode.DONE_CLEARED)
        raise self._aborted()

    def _write_what_follows(self, view: View) -> bool:
        """Write the decision, or the committed version, if it is time; return whether one was written."""
        if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
            return self._write_committed(view)
        give_up = self._must_give_up()
        prepared = None
        if decide.all_prepared(view):
            prepared = outcome.reports(self._group, self._command, StatusCode.PREPARED)
            if prepared is None and not give_up:
                return False  # their words are here before their reports: look again
        agree = prepared is not None and outcome.agree(prepared)
        word = decide.decision(view, agree=agree, give_up=give_up)
        if word is None:
            return False
        self._late = outcome.late(view)
        self._decided_ns = self._clock.monotonic_ns()
        self._log.info(log.COMMAND_DECIDED, decision=word.name)
        self._group.write_command(decide.decided(view, word))
        return True

    def _write_committed(self, view: View) -> bool:
        version = self._arguments.version
        if version is None:
            version = outcome.version(self._group, self._command)
        if version is None:
            return False
        self._group.write_committed(decide.committed(view, version))
        return True

    def _must_give_up(self) -> bool:
        if self._decided_ns is not None:
            return False
        self._lost = self._group.lost()
        self._gave_up = self._give_up.is_set()
        return bool(self._lost) or self._gave_up or self._elapsed_s(self._began_ns) > self._deadline_s

    def _raise_if_stuck(self, view: View) -> None:
        """End the wait for ranks that will not answer; what was decided stays decided."""
        if self._decided_ns is None:
            return
        waited = self._elapsed_s(self._decided_ns)
        waiting = decide.waiting_on(view)
        lost = [rank for rank in self._group.lost() if rank in waiting]
        # After an abort the living stand stopped until the dead have stopped too, which they never will.
        only_lost = lost and all(
            rank in lost or (status is not None and status.code in _STOPPED)
            for rank, status in waiting.items()
        )
        # Nor do those come back who wait for the dead inside a step.
        patience_s = min(LOST_S, self._settle_s) if lost else self._settle_s
        if not only_lost and waited <= patience_s:
            return
        self._lost = lost
        if lost or view.command.operation.is_abort:
            raise self._aborted()
        raise UnsettledError(
            request_id=self._arguments.request_id,
            decision=view.command.operation.name,
            waiting=outcome.late(view),
            waited_s=waited,
        )

    def _patience_s(self) -> float:
        left = self._deadline_s - self._elapsed_s(self._began_ns)
        return max(min(LOOK_S, left if self._decided_ns is None else LOOK_S), 0.0005)

    def _aborted(self) -> Exception:
        error = outcome.aborted(
            self._group,
            self._command,
            request_id=self._arguments.request_id,
            operation=self._command.operation.name.lower(),
            late_then=self._late,
            lost=self._lost,
            deadline_s=self._deadline_s,
            gave_up=self._gave_up,
        )
        self._log.error(log.COMMAND_FAILED, error=str(error))
        return error

    def _receipt(self, how: Outcome, code: StatusCode) -> Receipt:
        found = outcome.reports(self._group, self._command, code) or []
        view = self._group.view()
        digests = {report.manifest_digest for report in found}
        receipt = Receipt(
            request_id=self._arguments.request_id,
            outcome=how,
            epoch=self._command.epoch,
            sequence=self._command.sequence,
            version=view.committed.version if how is Outcome.UPDATED else None,
            previous_version=self._previous,
            manifest_digest=digests.pop() if len(digests) == 1 else None,
            loaded=how is Outcome.UPDATED,
            seconds=self._elapsed_s(self._began_ns),
            pause_s=max((report.pause_s for report in found), default=0.0),
            ranks=tuple(found),
        )
        self._log.info(log.COMMAND_FINISHED, outcome=how.value, seconds=receipt.seconds)
        return receipt

    def _elapsed_s(self, since_ns: int) -> float:
        return (self._clock.monotonic_ns() - since_ns) / 1e9
