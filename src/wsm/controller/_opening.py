"""How a command is begun: what a caller asks, role, inheritance, admission, engine words, command word.

In this order. A request that contradicts itself is refused before a group is looked at; what is refused on
the way is undone and has changed nothing. What the group holds, and whether that leaves
any work, is judged by :mod:`wsm.states.decide`; an open command is driven by :mod:`._transaction`.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from wsm.clock import Clock
from wsm.command import CommandArguments, partial_update_refused
from wsm.committed_record import CommittedRecord, CommittedRecordError
from wsm.config import EngineWordsConfig
from wsm.controller import errors, outcome
from wsm.controller._command_request import CommandRequest
from wsm.controller._held import HeldDecision
from wsm.controller._transaction import Pending, Transaction, decision_held
from wsm.controller.engine_words import TakenWords, leave_words, take_words
from wsm.controller.errors import (
    MixedGroupError,
    RankLostError,
)
from wsm.controller.group_view import GroupAccess, GroupView
from wsm.errors import WsmError
from wsm.receipt import Outcome, Receipt, named
from wsm.signals.errors import RoleBusyError
from wsm.signals.lock_file import LockHold
from wsm.states import decide, holding
from wsm.states.decide import (
    Inheritance,
    Resident,
    before_admission,
    inherited,
    needs_no_work,
    resident_for,
    resident_on_each,
    state_before,
)
from wsm.states.holding import Answer, Hold
from wsm.states.view import View
from wsm.states.vocabulary import (
    After,
    InFlightPolicy,
    Tag,
    WeightState,
    sentence_of,
)
from wsm.states.words import CommandWord, Decider, Operation, StatusCode
from wsm.status.facts import who
from wsm.status.rules import controller_in_words

#: Seconds that a command which a dead controller left open may take to settle where the caller has no time.
TAKEOVER_S = 1.0

#: Seconds that a process of the group may take for the words of a command whose controller is gone.
ENDING_S = 0.2


def require_able(group: GroupView, view: View, operation: Operation) -> CommandWord:
    """Return the word of the next command, if the group can be given one.

    Raises
    ------
    RankLostError
        If a process is gone; it names the ranks.
    wsm.states.errors.CommandOpenError
        If the last command is not over.
    RefusedError
        If a rank said on joining that it derived other plans than the first one: they would wait for each
        other in different collective actions.
    """
    lost = group.lost()
    if lost:
        status = group.status()
        raise RankLostError(
            operation=operation.name.lower(),
            ranks=lost,
            group=status.sentence(),
            advice=" ".join(status.advice),
        )
    command = decide.next_command(view, operation)
    others = group.ranks_of_other_plans(command.epoch)
    if others:
        raise errors.plans_differ(ranks=others)
    return command


class _Admitted(NamedTuple):
    """A request that the group can be asked now.

    Parameters
    ----------
    view : View
        What was read.
    command : CommandWord
        The word that opens it.
    held : Resident
        What all participants hold.
    owed : bool
        Whether the group waits to be restored to its committed version.
    committed : CommittedRecord
        What it has committed.
    """

    view: View
    command: CommandWord
    held: Resident
    owed: bool
    committed: CommittedRecord


class Opening:
    """Begins commands to one group.

    Parameters
    ----------
    access : GroupAccess
        The group.
    engine_words : EngineWordsConfig
        FastDeploy's words of the same group; each command takes them first.
    clock : Clock
        For deadlines.
    """

    def __init__(self, access: GroupAccess, engine_words: EngineWordsConfig, clock: Clock) -> None:
        self._access = access
        self._group = access.group
        self._engine_words = engine_words
        self._clock = clock

    def begin(self, request: CommandRequest) -> Pending:
        """Write the command, or return a receipt where nothing is to do. Blocks up to `wait_s`."""
        with ExitStack() as ending:
            self._access.begin_use()
            ending.callback(self._access.end_use)
            ending.callback(self._take_role(request.wait_s).release)
            view = self._complete_inherited(min(request.settle_s, max(request.wait_s, TAKEOVER_S)))
            if request.operation.is_of_admission:
                request.require_wanted()
                return self._begin_of_admission(request, view, ending)
            request = self._under_hold(request, view)
            admitted = self._admit(request, view)
            request.require_wanted()
            asked, held = request.arguments, admitted.held
            if needs_no_work(
                held,
                request.operation,
                asked.tags,
                version=None if asked.reload else asked.version,
                committed=admitted.committed.version,
                owed=admitted.owed,
            ):
                if request.changes_admission(held=view.committed.held):
                    return self._begin_of_admission(request.of_admission(), view, ending)
                return Pending.ended(self._receipt_of_no_work(request, admitted))
            # Only the ranks can find out that what is announced is held; the receipt is for that case.
            unneeded = None
            if asked.version is None and not (asked.clears or asked.reload or asked.tags & held.missing):
                unneeded = self._receipt_of_no_work(request, admitted)
            begun_ns = self._clock.monotonic_ns()
            request = request.possible_from(held.as_whole)
            given_up = threading.Event()
            transaction = self._write(request, admitted, given_up, ending)
            over = ending.pop_all()

        def drive() -> Receipt:
            try:
                return transaction.drive()
            except WsmError as error:
                if unneeded is not None and outcome.found_held(error):
                    if request.changes_admission(held=view.committed.held):
                        alone = request.of_admission()
                        return self._write_of_admission(alone, self._group.view(), over).drive()
                    return replace(unneeded, seconds=(self._clock.monotonic_ns() - begun_ns) / 1e9)
                following = None if given_up.is_set() else request.after(error)
                if following is None:
                    raise
            # The update in place that a hot one falls back to, with the role still held.
            again = self._admit(following, self._group.view())
            return self._write(following, again, given_up, over).drive()

        return Pending.driven(transaction, over, drive if request.held is None else request.held.told(drive))

    def settle(self, request_id: str | None, *, commit: bool, settle_s: float, wait_s: float) -> Pending:
        """Commit or abort the open command that no process drives; what is refused is raised here."""
        with ExitStack() as ending:
            self._access.begin_use()
            ending.callback(self._access.end_use)
            ending.callback(self._take_role(wait_s).release)
            view = self._group.view()
            arguments = self._group.arguments(view.command) or CommandArguments("its arguments are gone")
            found = decide.objection(
                view,
                commit=commit,
                leased=arguments.leased,
                asked=request_id is None or request_id == arguments.request_id,
            )
            if found is decide.Objection.OTHERWISE:
                raise errors.decided_otherwise(request_id=arguments.request_id, committed=not commit)
            if found is not None:
                raise errors.not_prepared(request_id=request_id or "", found=found.value)
            held = HeldDecision()
            held.say(commit=commit)
            transaction = Transaction(
                self._group,
                view.command,
                arguments,
                deadline_s=settle_s,
                settle_s=settle_s,
                clock=self._clock,
                previous=self._group.known_version(view),
                held=held,
                operator=view.command.decider is Decider.OUTSIDE,
            )
            over = ending.pop_all()
        return Pending.driven(transaction, over, transaction.drive)

    def _take_role(self, wait_s: float) -> LockHold:
        """Take the role; a process of the group that only ends an abandoned command is waited for."""
        role = self._group.role
        try:
            return role.acquire(wait_s)
        except RoleBusyError as busy:
            pid, ranks = busy.context["pid"], self._group.ranks_of(busy.context["pid"])
            if not ranks and pid != self._group.owner_pid:
                doing = controller_in_words(self._group.facts())
                raise RoleBusyError(**{**busy.context, "doing": doing}) from None
        try:
            return role.acquire(ENDING_S)
        except RoleBusyError as busy:
            command = self._group.view().command
            what = f"which is ending command {command.sequence} ({command.operation.name})"
            named = controller_in_words(self._group.facts())
            if ranks:
                named = f"{who(ranks[0])}, {what} whose controller is gone"
            context = {**busy.context, "doing": named, "waited_s": wait_s + ENDING_S}
            raise RoleBusyError(**context) from None

    def _complete_inherited(self, settle_s: float) -> View:
        """Bring a command to its end that another controller left open; the role proves that it is gone."""
        view = self._group.view()
        arguments = self._group.arguments(view.command)
        found = inherited(view, leased=arguments is not None and arguments.leased)
        if found is Inheritance.NOTHING or view.command.operation is Operation.NONE:
            return view
        if found is Inheritance.HELD:
            raise decision_held(view, arguments)
        Transaction(
            self._group,
            view.command,
            arguments or CommandArguments("its arguments are gone"),
            deadline_s=settle_s,
            settle_s=settle_s,
            clock=self._clock,
            previous=self._group.known_version(view),
        ).complete()
        return self._group.view()

    # -- hold and release ---------------------------------------------------------------------------

    def _begin_of_admission(self, request: CommandRequest, view: View, ending: ExitStack) -> Pending:
        """Hold the group or release it, or return a receipt where no rank is to be asked."""
        group, asked = self._group, request.arguments
        each = resident_on_each(view)
        missing = frozenset(tag for resident in each for tag in resident.missing)
        hold, held = group.known_hold(view), view.committed.held
        if request.operation is Operation.HOLD:
            answer = holding.asked_to_hold(hold, held=held, owner=request.owner)
        else:
            self._require_in_force(request, view)
            answer = holding.asked_to_release(
                hold, held=held, owner=request.owner, forced=request.forced, missing=missing
            )
        if answer is Answer.NOT_THE_OWNER and hold is not None:
            operation = request.operation.name.lower()
            raise errors.held_by_another(operation=operation, owner=hold.owner, hold_id=hold.hold_id)
        if answer is Answer.CANNOT_SERVE:
            raise errors.cannot_be_released(missing=named(missing), told=sentence_of(missing))
        if answer is Answer.NOTHING:
            return Pending.ended(self._receipt_of_admission(request, view, Outcome.ALREADY_OPEN, missing))
        if answer is Answer.RENEW:
            self._renew(view, hold, asked.hold)
            return Pending.ended(self._receipt_of_admission(request, view, Outcome.HOLD_RENEWED, missing))
        transaction = self._write_of_admission(request, view, ending)
        return Pending.driven(transaction, ending.pop_all(), transaction.drive)

    def _write_of_admission(self, request: CommandRequest, view: View, ending: ExitStack) -> Transaction:
        """Write a hold or a release, and leave to `ending` what is to be done when it is over."""
        group, each = self._group, resident_on_each(view)
        command = require_able(group, view, request.operation)
        before, waits = before_admission(each, owed=group.unrestored(view))
        arguments = replace(request.arguments, before=before, restores=waits, deadline_s=request.deadline_s)
        with ExitStack() as undo:
            taken = None
            if self._engine_words.suffixes:
                taken = self._words_of_admission(request)
                undo.callback(taken.give_back)
            command = group.open(view, command._replace(operation=request.operation), arguments)
            undo.pop_all()
        if taken is not None and taken.words:
            ending.callback(lambda: taken.answer(group.status().engine_state))
        return Transaction(
            group,
            command,
            arguments,
            deadline_s=request.deadline_s,
            settle_s=request.settle_s,
            clock=self._clock,
            previous=group.known_version(view),
        )

    def _renew(self, view: View, hold: Hold | None, asked: Hold | None) -> None:
        """Let the lease of a hold begin anew, as its owner asks for it now; id and policies stay."""
        record = self._group.committed(view)
        if asked is not None:
            kept = (
                asked
                if hold is None
                else replace(
                    hold, lease_s=asked.lease_s, on_lease=asked.on_lease, renewed_ns=asked.renewed_ns
                )
            )
            self._group.write_record(view, replace(record, hold=kept.facts()))

    def _under_hold(self, request: CommandRequest, view: View) -> CommandRequest:
        """Return a command with what the hold that the group stands under means for it.

        Raises
        ------
        RefusedError
            If it names a hold that is not in force, or is to serve and brings not all that is missing.
        """
        self._require_in_force(request, view)
        asked = request.arguments
        hold = self._group.known_hold(view)
        usual = InFlightPolicy.KEEP if request.operation.is_hot else InFlightPolicy.ABORT
        in_flight = holding.in_flight_under(hold, request.in_flight, usual)
        if asked.after is After.SERVE and view.committed.held:
            missing = frozenset(tag for each in resident_on_each(view) for tag in each.missing)
            left = missing - asked.tags
            if left:
                raise errors.cannot_be_released(missing=named(left), told=sentence_of(left))
            if hold is not None and request.hold is None and hold.owner != request.owner:
                raise errors.held_by_another(operation="release", owner=hold.owner, hold_id=hold.hold_id)
        begins = None if view.committed.held else asked.hold  # the hold that there is stays what it is
        return replace(request, arguments=replace(asked, in_flight=in_flight, hold=begins))

    def _require_in_force(self, request: CommandRequest, view: View) -> None:
        hold, held = self._group.known_hold(view), view.committed.held
        if not holding.is_in_force(hold, request.hold, held=held):
            now = None if not held else "without a name" if hold is None else hold.hold_id
            raise errors.hold_not_in_force(hold=request.hold or "", now=now)

    def _words_of_admission(self, request: CommandRequest) -> TakenWords:
        """Take FastDeploy's words: a hold as a clear does, a release as an update."""
        found = self._group.status().engine_state
        before = WeightState.CLEARED if found is None else WeightState(found.fastdeploy_code)
        holds = request.operation is Operation.HOLD
        asked = WeightState.CLEARING if holds else WeightState.UPDATING
        if holds and before is not WeightState.NORMAL:
            return leave_words(self._engine_words, before=before, directory=self._access.directory)
        return take_words(self._engine_words, before=before, asked=asked, directory=self._access.directory)

    def _receipt_of_admission(
        self, request: CommandRequest, view: View, how: Outcome, missing: frozenset[Tag]
    ) -> Receipt:
        """Return the receipt of a hold or a release that no rank was asked for."""
        group = self._group
        version = group.known_version(view)
        return Receipt(
            request_id=request.arguments.request_id,
            outcome=how,
            epoch=view.command.epoch,
            sequence=view.command.sequence,
            version=None if Tag.WEIGHTS in missing else version,
            previous_version=version,
            manifest_digest=None,
            loaded=False,
            seconds=0.0,
            pause_s=0.0,
            ranks=(),
            missing=named(missing),
            serving=not missing and not view.committed.held,
            hold=group.hold(view),
        )

    def _admit(self, request: CommandRequest, view: View) -> _Admitted:
        """Refuse what this group cannot be asked now; return what was found."""
        operation, tags = request.operation, request.arguments.tags
        command = require_able(self._group, view, operation)
        held = resident_for(view, operation, tags)
        if held is None:
            each = enumerate(resident_on_each(view))
            raise MixedGroupError(states={rank: str(resident) for rank, resident in each})
        if request.arguments.partial and not held.serving:
            raise partial_update_refused(why=f"every rank is {held.as_whole.name}")
        try:
            committed = self._group.committed(view)
        except CommittedRecordError:
            if not (request.arguments.clears or Tag.WEIGHTS in tags):
                raise  # what it leaves would be committed anew under a name that is not known
            committed = CommittedRecord(view.committed.sequence)
        return _Admitted(view, command, held, self._group.unrestored(view), committed)

    def _write(
        self, request: CommandRequest, admitted: _Admitted, given_up: threading.Event, ending: ExitStack
    ) -> Transaction:
        """Write a command that was admitted, and leave to `ending` what is to be done when it is over."""
        last = admitted.view.command
        if not last.commands_left:
            raise errors.commands_used_up(sequence=last.sequence)
        with ExitStack() as undo:
            taken = None
            if self._engine_words.suffixes:
                taken = self._words_taken(request, admitted)
                undo.callback(taken.give_back)
                if request.arguments.leased and taken.words:
                    raise errors.lease_and_words(words=", ".join(map(str, self._engine_words.suffixes)))
            arguments = replace(
                request.arguments,
                before=state_before(admitted.held, owed=admitted.owed),
                deadline_s=request.deadline_s,
            )
            word = admitted.command._replace(operation=request.operation)
            if request.held is not None:
                word = word._replace(decider=Decider.CALLER)
            command = self._group.open(admitted.view, word, arguments)
            undo.pop_all()
        if taken is not None and taken.words:
            ending.callback(lambda: taken.answer(self._group.status().engine_state))
        return Transaction(
            self._group,
            command,
            arguments,
            deadline_s=request.deadline_s,
            settle_s=request.settle_s,
            clock=self._clock,
            previous=admitted.committed.version,
            given_up=given_up,
            fallback=request.fallback,
            held=request.held,
        )

    def _words_taken(self, request: CommandRequest, admitted: _Admitted) -> TakenWords:
        """Take FastDeploy's words, as an engine would that asks for the same; a hot update leaves them."""
        whole = WeightState.CLEARED if admitted.view.committed.held else admitted.held.as_whole
        before = WeightState(whole.fastdeploy_code)
        directory = self._access.directory
        if request.operation.is_hot:
            return leave_words(self._engine_words, before=before, directory=directory)
        asked = WeightState.CLEARING if request.arguments.clears else WeightState.UPDATING
        return take_words(self._engine_words, before=before, asked=asked, directory=directory)

    def _receipt_of_no_work(self, request: CommandRequest, admitted: _Admitted) -> Receipt:
        """Return the receipt of a request whose end is reached already."""
        group, view, held, committed = self._group, admitted.view, admitted.held, admitted.committed
        there = request.operation is not Operation.CLEAR
        origin = view.command._replace(sequence=committed.load_sequence)
        found = [group.report(rank, origin, StatusCode.DONE_COMMITTED) for rank in range(group.participants)]
        reports = tuple(report for report in found if report is not None) if there else ()
        digests = {report.manifest_digest for report in reports if report.manifest_digest is not None}
        kept = Outcome.ALREADY_SERVED if held.serving else Outcome.ALREADY_HELD
        return Receipt(
            request_id=request.arguments.request_id,
            outcome=kept if there else Outcome.ALREADY_CLEARED,
            epoch=view.command.epoch,
            sequence=committed.load_sequence if there else view.command.sequence,
            version=committed.version if held.weights is WeightState.NORMAL else None,
            previous_version=committed.version,
            manifest_digest=digests.pop() if len(digests) == 1 else None,
            loaded=False,
            seconds=0.0,
            pause_s=0.0,
            ranks=reports,
            tags=named(request.arguments.tags),
            missing=named(held.missing),
            restorable=outcome.restorable(reports),
            serving=held.serving and not view.committed.held,
            hold=group.hold(view),
        )
