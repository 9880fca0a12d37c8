"""One open command, driven by a thread of its own until it is over.

The thread holds the controller role for as long as the command is open, so a caller that computes
between calls, or gives up waiting, leaves nobody undecided. What to write is decided by
:mod:`wsm.protocol.decide`; this module brings time, deaths and reports to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from wsm import log
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.controller import outcome
from wsm.controller.errors import UnsettledError
from wsm.controller.group_view import GroupView
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


class Pending:
    """A command under way, for the caller. Safe for threads.

    Attributes
    ----------
    request_id : str
        The request's name.
    """

    def __init__(self, request_id: str, future: Future[Receipt], give_up: Callable[[], None]) -> None:
        self.request_id = request_id
        self._future = future
        self._give_up = give_up

    @classmethod
    def ended(cls, receipt: Receipt) -> Pending:
        """Return a command that needed no work."""
        future: Future[Receipt] = Future()
        future.set_result(receipt)
        return cls(receipt.request_id, future, lambda: None)

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt. Blocks; the command has a deadline of its own.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout_s` seconds; it goes on.
        wsm.errors.WsmError
            As :meth:`wsm.Controller.clear` and :meth:`wsm.Controller.update`.
        """
        try:
            return self._future.result(timeout_s)
        except FutureTimeoutError:
            if self._future.done():
                raise
            raise TimeoutError(f"{self.request_id} is not over after {timeout_s} s; it goes on") from None

    def give_up(self) -> None:
        """Abort the command if nothing is decided yet; a decision that was made is final. Does not block."""
        self._give_up()

    @property
    def over(self) -> bool:
        """Whether the receipt, or the error, is there."""
        return self._future.done()


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
    on_over : callable or None
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
        on_over: Callable[[], None] | None = None,
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
                if self._on_over is not None:
                    self._on_over()
                self._role.release()
        except BaseException as error:  # noqa: BLE001 - the caller's thread gets it, whatever it is
            self._future.set_exception(error)
        else:
            self._future.set_result(receipt)

    def _drive(self) -> Receipt:
        while True:
            watches = self._group.watches()
            view = self._group.view()
            if decide.is_over(view):
                break
            if not self._write_what_follows(view):
                self._raise_if_stuck(view)
                self._group.wait(watches, self._patience_s())
        committed = view.command.operation.is_commit
        cleared = view.command.operation is Operation.CLEAR
        if committed:
            return self._receipt(Outcome.UPDATED, StatusCode.DONE_COMMITTED)
        if cleared:
            return self._receipt(Outcome.CLEARED, StatusCode.DONE_CLEARED)
        raise self._aborted()

    def _write_what_follows(self, view: View) -> bool:
        """Write the decision, or the committed version, if it is time; return whether one was written."""
        prepared = outcome.reports(self._group, self._command, StatusCode.PREPARED)
        agree = prepared is not None and outcome.agree(prepared)
        word = decide.decision(view, agree=agree, give_up=self._must_give_up())
        if word is not None:
            if not self._late:
                self._late = outcome.late(view)
            self._decided_ns = self._clock.monotonic_ns()
            self._log.info(log.COMMAND_DECIDED, decision=word.name)
            self._group.write_command(decide.decided(view, word))
            return True
        if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
            version = self._arguments.version if prepared is None else prepared[0].version
            if version is not None:
                self._group.write_committed(decide.committed(view, version))
                return True
        return False

    def _must_give_up(self) -> bool:
        if self._decided_ns is not None:
            return False
        self._lost = self._group.lost()
        return (
            bool(self._lost) or self._give_up.is_set() or self._elapsed_s(self._began_ns) > self._deadline_s
        )

    def _raise_if_stuck(self, view: View) -> None:
        """End the wait for ranks that will not answer; what was decided stays decided."""
        if self._decided_ns is None:
            return
        waited = self._elapsed_s(self._decided_ns)
        waiting = outcome.late(view)
        lost = [rank for rank in self._group.lost() if rank in waiting]
        if lost and len(lost) == len(waiting):
            self._lost = lost
            raise self._aborted()
        if waited > self._settle_s:
            raise UnsettledError(
                request_id=self._arguments.request_id,
                decision=view.command.operation.name,
                waiting=waiting,
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
