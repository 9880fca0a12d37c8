"""One open command, from its word to its end.

What to write is decided by :mod:`wsm.states.decide`; this module brings time, deaths and reports to it.
Whoever calls it holds the controller role; which thread that is, is :mod:`.driving`'s business.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from wsm import log
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.controller import outcome
from wsm.controller.company import LOOK_S, Company
from wsm.controller.errors import EpochEndedError, UnsettledError
from wsm.controller.group_view import GroupView
from wsm.controller.outcome import Situation
from wsm.controller.status import read_status
from wsm.errors import WsmError
from wsm.receipt import Outcome, Receipt, named
from wsm.report import ReportFormatError
from wsm.states import decide
from wsm.states import journal as kinds
from wsm.states.view import View
from wsm.states.vocabulary import KVState, Tag, WeightState
from wsm.states.words import CommandWord, Operation, StatusCode
from wsm.status.facts import Held

#: How long a decided command may take to be over on every rank before the caller is told, in seconds.
SETTLE_S = 30.0


class Transaction:
    """A command under way, as :class:`wsm.Controller` drives it.

    Parameters
    ----------
    group : GroupView
        The group.
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
    given_up : threading.Event or None
        Set when the caller gives up; shared by the commands of one request.
    fallback : str or None
        For the receipt: why this command is not the hot one that was asked for.
    """

    def __init__(
        self,
        group: GroupView,
        command: CommandWord,
        arguments: CommandArguments,
        *,
        deadline_s: float,
        settle_s: float,
        clock: Clock,
        given_up: threading.Event | None = None,
        fallback: str | None = None,
    ) -> None:
        self._group = group
        self._command = command
        self._arguments = arguments
        self._deadline_s = deadline_s
        self._settle_s = settle_s
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._decided_ns: int | None = None
        self._previous = group.view().committed.version
        self._given_up = given_up or threading.Event()
        self._fallback = fallback
        self._gave_up = False
        self._unusable: ReportFormatError | None = None
        self._is_inherited = False
        self._company = Company(group, command, clock)
        self._situation = Situation()
        self._log = log.logger(
            "controller", epoch=command.epoch, sequence=command.sequence, request_id=arguments.request_id
        )

    @property
    def request_id(self) -> str:
        """The caller's name for the request."""
        return self._arguments.request_id

    @property
    def sequence(self) -> int:
        """Which command it is."""
        return self._command.sequence

    def give_up(self) -> None:
        """Abort the command if nothing is decided yet. Does not block; safe for threads."""
        self._given_up.set()
        self._group.ring()

    def drive(self) -> Receipt:
        """Bring the command to its end. Blocks up to its deadline and the settle time.

        Raises
        ------
        wsm.errors.WsmError
            As :meth:`wsm.Controller.update`.
        """
        self._log.info(log.COMMAND_ISSUED, operation=self._command.operation.name)
        return self._drive()

    def complete(self) -> None:
        """Bring a command that a dead controller left open to its end, in this thread, with this role.

        An undecided one is committed if every rank is PREPARED, else aborted. Blocks up to the settle
        time. How it ends is for its own caller, who is dead; it is logged.
        """
        self._is_inherited = True
        self.give_up()
        try:
            self._drive()
        except WsmError as error:
            self._log.warning(log.DECISION_COMPLETED, error=str(error))
        else:
            self._log.warning(log.DECISION_COMPLETED)

    def _drive(self) -> Receipt:
        while True:
            watches = self._group.watches()
            view = self._group.view()
            if view.command[:2] != self._command[:2]:
                # What is decided in another epoch, or about another command, is not for this one to write.
                raise EpochEndedError(
                    operation=self._command.operation.name.lower().replace("_", " "),
                    epoch=self._command.epoch,
                    sequence=self._command.sequence,
                    group=read_status(self._group).sentence(),
                )
            if view.command.operation.is_decision and self._decided_ns is None:
                self._decided_ns = self._clock.monotonic_ns()  # by a controller that is dead
            if decide.is_over(view):
                break
            self._company.look(view)
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
            try:
                prepared = outcome.reports(self._group, self._command, StatusCode.PREPARED)
            except ReportFormatError as error:
                self._unusable = error  # what it prepared cannot be compared: it is not committed
            if prepared is None and self._unusable is None and not give_up:
                return False  # their words are here before their reports: look again
        agree = prepared is not None and outcome.agree(prepared)
        word = decide.decision(view, agree=agree, give_up=give_up)
        if word is None:
            return False
        if word.is_abort:
            self._situation = self._seen(view)
        self._decided_ns = self._clock.monotonic_ns()
        self._log.info(log.COMMAND_DECIDED, decision=word.name)
        self._group.decide(decide.decided(view, word))
        return True

    def _write_committed(self, view: View) -> bool:
        word = outcome.committed_word(self._group, view, self._arguments)
        if word is not None:
            self._group.write_committed(word)
        return word is not None

    def _must_give_up(self) -> bool:
        if self._decided_ns is not None:
            return False
        self._gave_up = self._given_up.is_set()
        troubled = self._company.lost or self._company.hangs
        return bool(troubled) or self._gave_up or self._elapsed_s(self._began_ns) > self._deadline_s

    def _seen(self, view: View) -> Situation:
        """Keep what there is to be said of the ranks now, for the error that may come of it."""
        company = self._company
        return Situation(
            late=outcome.late(self._group, view),
            doing=outcome.doings(self._group, view),
            lost=tuple(company.lost),
            broken=outcome.broken(view, company.lost),
            hangs=tuple(company.hangs),
            deadline_s=self._deadline_s,
            gave_up=self._gave_up,
            expired=self._elapsed_s(self._began_ns) > self._deadline_s,
            failed=outcome.failed(self._group, self._command),
        )

    def _raise_if_stuck(self, view: View) -> None:
        """End the wait for ranks that will not answer; what was decided stays decided."""
        if self._decided_ns is None:
            return
        waited = self._elapsed_s(self._decided_ns)
        # Who takes a command back wants it settled; who was told that it failed wants to know by whom.
        patient = self._gave_up and not self._is_inherited
        if not self._company.is_hopeless(view, waited_s=waited, settle_s=self._settle_s, patient=patient):
            return
        waiting = decide.waiting_on(view)
        lost = tuple(rank for rank in self._company.lost if rank in waiting)
        broken = outcome.broken(view, lost)
        # A step that raised after the decision raised over it, and whoever ends after the deadline ends over
        # what was late then: the first cause is to blame for both.
        first = self._situation
        to_blame = lost if first.lost or (set(lost) - set(broken) and not first.expired) else ()
        self._situation = replace(
            self._situation,
            lost=to_blame,
            broken=broken,
            hangs=self._situation.hangs or tuple(self._company.hangs),
        )
        if lost or view.command.operation.is_abort:
            raise self._aborted()
        raise UnsettledError(
            request_id=self._arguments.request_id,
            decision=view.command.operation.name,
            waiting=outcome.late(self._group, view),
            waited_s=waited,
        )

    def _patience_s(self) -> float:
        undecided = self._decided_ns is None
        left_s = self._deadline_s - self._elapsed_s(self._began_ns) if undecided else LOOK_S
        return self._company.wait_s(left_s)

    def _aborted(self) -> Exception:
        if self._unusable is not None:
            self._log.error(log.COMMAND_FAILED, error=str(self._unusable))
            return self._unusable
        error = outcome.aborted(
            self._group,
            self._command,
            request_id=self._arguments.request_id,
            operation=self._command.operation.name.lower().replace("_", " "),
            then=self._situation,
        )
        if not outcome.found_held(error):
            self._log.error(log.COMMAND_FAILED, error=str(error))
        self._note(kinds.COMMAND_OVER, outcome=str(error))
        return error

    def _receipt(self, how: Outcome, code: StatusCode) -> Receipt:
        found = outcome.reports(self._group, self._command, code) or []
        view = self._group.view()
        digests = {report.manifest_digest for report in found if report.manifest_digest is not None}
        held = [Held(WeightState(word.weights), KVState(word.kv)) for word in view.statuses]
        missing = frozenset(tag for each in held for tag in each.missing)
        receipt = Receipt(
            request_id=self._arguments.request_id,
            outcome=how,
            epoch=self._command.epoch,
            sequence=self._command.sequence,
            version=None if Tag.WEIGHTS in missing else view.committed.version,
            previous_version=self._previous,
            manifest_digest=digests.pop() if len(digests) == 1 else None,
            loaded=how is Outcome.UPDATED and (not found or any(report.tensors for report in found)),
            seconds=self._elapsed_s(self._began_ns),
            pause_s=max((report.pause_s for report in found), default=0.0),
            ranks=tuple(found),
            hot=self._command.operation.is_hot,
            staging_s=self._staging_s(),
            fallback=self._fallback,
            tags=named(self._arguments.tags),
            missing=named(missing),
            partial=self._arguments.partial,
            restorable=outcome.restorable(found),
        )
        self._log.info(log.COMMAND_FINISHED, outcome=how.value, seconds=receipt.seconds)
        self._note(kinds.COMMAND_OVER, outcome=receipt.sentence())
        return receipt

    def _staging_s(self) -> float:
        """Seconds from a hot command to its decision, which every rank has served; 0 for others."""
        if not self._command.operation.is_hot or self._decided_ns is None:
            return 0.0
        return (self._decided_ns - self._began_ns) / 1e9

    def _note(self, kind: str, **facts: Any) -> None:
        self._group.journal.note(kind, self._command, **facts)

    def _elapsed_s(self, since_ns: int) -> float:
        return (self._clock.monotonic_ns() - since_ns) / 1e9
