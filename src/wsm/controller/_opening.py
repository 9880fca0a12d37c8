"""How a command is begun: what a caller asks, role, inheritance, admission, engine words, command word.

In this order. A request that contradicts itself is refused before a group is looked at; what is refused on
the way is undone and has changed nothing. What the group holds, and whether that leaves any work, is judged
by :mod:`wsm.states.decide`; whose hold is in force, and what it lets through, by :mod:`wsm.states.holding`.
An open command is driven by :mod:`._transaction`.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from wsm.clock import Clock
from wsm.command import CommandArguments, partial_update_refused
from wsm.committed_record import CommittedRecord, CommittedRecordError, write_record
from wsm.config import EngineWordsConfig
from wsm.controller import errors, outcome
from wsm.controller._command_request import CommandRequest, HeldDecision
from wsm.controller._engine_words import take_words
from wsm.controller._transaction import Pending, Transaction, decision_held, known_arguments
from wsm.controller.errors import (
    MixedGroupError,
    RankLostError,
)
from wsm.controller.group_view import GroupAccess, GroupView
from wsm.errors import WsmError
from wsm.receipt import Outcome, Receipt, named
from wsm.signals.errors import RoleBusyError
from wsm.signals.lock_file import LockHold
from wsm.signals.segment import loop_without_poll
from wsm.states import decide, epochs, holding
from wsm.states.decide import (
    Inheritance,
    Resident,
    before_admission,
    inherited,
    missing_anywhere,
    needs_no_work,
    resident_for,
    resident_on_each,
    state_before,
)
from wsm.states.holding import Answer, Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, Tag, WeightState, sentence_of
from wsm.states.words import CommandWord, Decider, Operation, StatusCode
from wsm.status.facts import who
from wsm.status.rank_progress import controller_in_words

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
        If the ranks look at commands of one process only, and this is another one. Or if a rank said on
        joining that it derived other plans than the first one: they would wait for each
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
    loop = loop_without_poll(group.segment)
    if loop is not None:
        raise errors.loop_does_not_poll(operation=operation.name.lower(), place=loop)
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


def _engine_word_of(request: CommandRequest, before: WeightState) -> WeightState | None:
    """Return what FastDeploy's words say during a command, as if an engine asked for it; None: as before.

    A hot update leaves them: a word that said UPDATING would keep the engine from sending requests to a
    group that serves. A hold does as a clear, where there is something to clear, and a release as an update.
    """
    holds = request.operation is Operation.HOLD
    if request.operation.is_hot or (holds and before is not WeightState.NORMAL):
        return None
    return WeightState.CLEARING if holds or request.arguments.clears else WeightState.UPDATING


def answered_at_once(group: GroupView, request: CommandRequest, view: View) -> Receipt | None:
    """Return the receipt of a hold or a release that no rank has to be asked for; None: write it.

    Raises
    ------
    RefusedError
        If another owner holds the group, the hold is not in force, or the group could not serve.
    """
    missing, held = missing_anywhere(view), view.committed.held
    if request.operation is Operation.HOLD:
        hold = group.known_hold(view)
        answer = holding.asked_to_hold(hold, held=held, owner=request.owner)
    else:
        hold = _in_force(group, request, view)
        answer = holding.asked_to_release(
            hold, held=held, owner=request.owner, forced=request.forced, missing=missing
        )
    if answer is Answer.NOT_THE_OWNER and hold is not None:
        operation = request.operation.name.lower()
        raise errors.held_by_another(operation=operation, owner=hold.owner, hold_id=hold.hold_id)
    if answer is Answer.CANNOT_SERVE:
        raise errors.cannot_be_released(missing=named(missing), told=sentence_of(missing))
    if answer is Answer.NOTHING:
        return _receipt_of_admission(group, request, view, Outcome.ALREADY_OPEN, missing)
    if answer is Answer.RENEW:
        _renew(group, view, hold, request.arguments.hold)
        return _receipt_of_admission(group, request, view, Outcome.HOLD_RENEWED, missing)
    return None


def under_hold(group: GroupView, request: CommandRequest, view: View) -> CommandRequest:
    """Return a command with what the hold that the group stands under means for it.

    Raises
    ------
    RefusedError
        If it names a hold that is not in force, or is to serve and brings not all that is missing.
    """
    if request.hold is None and not view.committed.held:
        return request
    hold, asked = _in_force(group, request, view), request.arguments
    usual = InFlightPolicy.KEEP if request.operation.is_hot else InFlightPolicy.ABORT
    in_flight = holding.in_flight_under(hold, request.in_flight, usual)
    if asked.after is After.SERVE and view.committed.held:
        left = missing_anywhere(view) - asked.tags
        if left:
            raise errors.cannot_be_released(missing=named(left), told=sentence_of(left))
        if hold is not None and request.hold is None and hold.owner != request.owner:
            raise errors.held_by_another(operation="release", owner=hold.owner, hold_id=hold.hold_id)
    begins = None if view.committed.held else asked.hold  # the hold that there is stays what it is
    return replace(request, arguments=replace(asked, in_flight=in_flight, hold=begins))


def _in_force(group: GroupView, request: CommandRequest, view: View) -> Hold | None:
    """Return what is known of the hold that the group stands under; refuse a request that names another."""
    hold, held = group.known_hold(view), view.committed.held
    if not holding.is_in_force(hold, request.hold, held=held):
        now = None if not held else "without a name" if hold is None else hold.hold_id
        raise errors.hold_not_in_force(hold=request.hold or "", now=now)
    return hold


def _renew(group: GroupView, view: View, hold: Hold | None, asked: Hold | None) -> None:
    """Let the lease of a hold begin anew, as its owner asks for it now; id and policies stay."""
    record = group.committed(view)
    if asked is not None:
        kept = (
            asked
            if hold is None
            else replace(hold, lease_s=asked.lease_s, on_lease=asked.on_lease, renewed_ns=asked.renewed_ns)
        )
        write_record(group.segment, view.command.epoch, replace(record, hold=kept.facts()))


def _receipt_of_admission(
    group: GroupView, request: CommandRequest, view: View, how: Outcome, missing: frozenset[Tag]
) -> Receipt:
    """Return the receipt of a hold or a release that no rank was asked for."""
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

    def begin(self, request: CommandRequest, *, here: bool = False) -> Pending:
        """Write the command, or return a receipt where nothing is to do. Blocks up to `wait_s`.

        With `here` the caller drives it to its end, as :meth:`.Pending.driven` says.
        """
        with ExitStack() as ending:
            self._access.begin_use()
            ending.callback(self._access.end_use)
            ending.callback(self._take_role(request.wait_s).release)
            ending.enter_context(self._group.journal.open_for_a_command())
            view = self._complete_inherited(min(request.settle_s, max(request.wait_s, TAKEOVER_S)))
            if request.operation.is_of_admission:
                request.require_wanted()
                return self._begin_of_admission(request, view, ending, here=here)
            request = under_hold(self._group, request, view)
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
                    return self._begin_of_admission(request.of_admission(), view, ending, here=here)
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
            nonlocal transaction
            try:
                return transaction.drive()
            except WsmError as error:
                found = unneeded if outcome.found_held(error) else None
                if found is not None and not request.changes_admission(held=view.committed.held):
                    return replace(found, seconds=(self._clock.monotonic_ns() - begun_ns) / 1e9)
                following = request.after(error) if found is None else request.of_admission()
                if following is None or given_up.is_set() or request.is_taken_back:
                    raise
            if following.operation.is_of_admission:  # with the words of the command that found this
                now = self._group.view()
                transaction = self._write_of_admission(following, now, over, given_up, takes_words=False)
                return transaction.drive()
            # The update in place that a hot one falls back to, with the role still held.
            again = self._admit(following, self._group.view())
            transaction = self._write(following, again, given_up, over)
            return transaction.drive()

        told = drive if request.held is None else request.held.told(drive)
        return Pending.driven(transaction, over, told, here=here)

    def settle(self, request_id: str | None, *, commit: bool, settle_s: float, wait_s: float) -> Pending:
        """Commit or abort the open command that no process drives; what is refused is raised here."""
        with ExitStack() as ending:
            self._access.begin_use()
            ending.callback(self._access.end_use)
            ending.callback(self._take_role(wait_s).release)
            view = self._group.view()
            arguments = known_arguments(self._group, view)
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
            held = HeldDecision(self._clock)
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
        view = self._group.look().view
        if decide.is_over(view) or view.command.operation is Operation.NONE:
            return view
        arguments = self._group.arguments(view.command)
        found = inherited(view, leased=arguments is not None and arguments.leased)
        if found is Inheritance.HELD:
            raise decision_held(view, arguments)
        Transaction(
            self._group,
            view.command,
            known_arguments(self._group, view),
            deadline_s=settle_s,
            settle_s=settle_s,
            clock=self._clock,
            previous=self._group.known_version(view),
        ).complete()
        return self._group.view()

    def _begin_of_admission(
        self, request: CommandRequest, view: View, ending: ExitStack, *, here: bool
    ) -> Pending:
        """Hold the group or release it, or return a receipt where no rank is to be asked."""
        receipt = answered_at_once(self._group, request, view)
        if receipt is not None:
            return Pending.ended(receipt)
        transaction = self._write_of_admission(request, view, ending)
        told = transaction.drive if request.held is None else request.held.told(transaction.drive)
        return Pending.driven(transaction, ending.pop_all(), told, here=here)

    def _write_of_admission(
        self,
        request: CommandRequest,
        view: View,
        ending: ExitStack,
        given_up: threading.Event | None = None,
        *,
        takes_words: bool = True,
    ) -> Transaction:
        """Write a hold or a release, and leave to `ending` what is to be done when it is over."""
        if request.operation is Operation.HOLD and not view.command.commands_left:
            raise errors.commands_used_up(sequence=view.command.sequence)  # a release is let through
        word = require_able(self._group, view, request.operation)
        before, waits = before_admission(resident_on_each(view), owed=epochs.unrestored(view))
        asked = replace(request.arguments, before=before, restores=waits, deadline_s=request.deadline_s)
        previous = self._group.known_version(view)
        return self._open(
            request, asked, view, word, previous, ending=ending, given_up=given_up, takes_words=takes_words
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
        return _Admitted(view, command, held, epochs.unrestored(view), committed)

    def _write(
        self, request: CommandRequest, admitted: _Admitted, given_up: threading.Event, ending: ExitStack
    ) -> Transaction:
        """Write a command that was admitted, and leave to `ending` what is to be done when it is over."""
        view = admitted.view
        if not view.command.commands_left:
            raise errors.commands_used_up(sequence=view.command.sequence)
        before = state_before(admitted.held, owed=admitted.owed)
        whole = WeightState.CLEARED if view.committed.held else admitted.held.as_whole
        return self._open(
            request,
            replace(request.arguments, before=before, deadline_s=request.deadline_s),
            view,
            admitted.command,
            admitted.committed.version,
            ending=ending,
            before=whole,
            given_up=given_up,
        )

    def _open(
        self,
        request: CommandRequest,
        arguments: CommandArguments,
        view: View,
        word: CommandWord,
        previous: str | None,
        *,
        ending: ExitStack,
        before: WeightState | None = None,
        given_up: threading.Event | None = None,
        takes_words: bool = True,
    ) -> Transaction:
        """Take FastDeploy's words, which show `before` now, and write the command's, with `arguments`.

        They are given back if that cannot be written.
        """
        with ExitStack() as undo:
            taken = None
            if takes_words and self._engine_words.suffixes:
                if before is None:
                    found = self._group.status().engine_state
                    before = WeightState.CLEARED if found is None else found
                before = WeightState(before.fastdeploy_code)
                says = _engine_word_of(request, before)
                taken = take_words(
                    self._engine_words, before=before, asked=says, directory=self._access.directory
                )
                undo.callback(taken.give_back)
                if arguments.leased and taken.words:
                    raise errors.lease_and_words(words=", ".join(map(str, self._engine_words.suffixes)))
            word = word._replace(operation=request.operation)
            if request.held is not None:
                word = word._replace(decider=Decider.CALLER)
            command = self._group.open(view, word, arguments)
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
            previous=previous,
            given_up=given_up,
            fallback=request.fallback,
            held=request.held,
        )

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
            restorable=outcome.told_by(reports).restorable,
            serving=held.serving and not view.committed.held,
            hold=group.hold(view),
        )
