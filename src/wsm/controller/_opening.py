"""How a command is begun: what a caller asks, role, inheritance, admission, engine words, command word.

In this order. A request that contradicts itself is refused before a group is looked at; what is refused on
the way is undone and has changed nothing. What the group holds, and whether that leaves
any work, is judged by :mod:`wsm.states.decide`; an open command is driven by :mod:`._transaction`.
"""

from __future__ import annotations

import enum
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from wsm.clock import Clock
from wsm.command import CommandArguments, checked_request_id, partial_update_refused
from wsm.committed_record import CommittedRecord, CommittedRecordError
from wsm.config import EngineWordsConfig
from wsm.controller import errors, outcome
from wsm.controller._transaction import Pending, Transaction
from wsm.controller.engine_words import TakenWords, leave_words, take_words
from wsm.controller.errors import (
    CommandRefusedError,
    CommandWithdrawnError,
    MixedGroupError,
    RankFailedError,
    RankLostError,
)
from wsm.controller.group_view import GroupAccess, GroupView
from wsm.errors import BadInputError, WsmError
from wsm.labels import checked_version, number_of
from wsm.receipt import Outcome, Receipt, named
from wsm.signals.errors import RoleBusyError
from wsm.signals.lock_file import LockHold
from wsm.states import decide
from wsm.states.decide import (
    Inheritance,
    Resident,
    inherited,
    needs_no_work,
    resident_for,
    resident_on_each,
    state_before,
)
from wsm.states.view import View
from wsm.states.vocabulary import ALL_TAGS, HotFallback, Tag, WeightState
from wsm.states.words import CommandWord, Operation, StatusCode
from wsm.status.facts import who
from wsm.status.rules import controller_in_words

#: How long a decided command may take to be over on every rank before the caller is told, in seconds.
SETTLE_S = 30.0

_Choice = TypeVar("_Choice", bound=enum.Enum)


@dataclass(frozen=True)
class CommandRequest:
    """One request to a :class:`wsm.Controller`.

    Parameters
    ----------
    operation : Operation
        What is asked of the ranks: ``CLEAR``, ``UPDATE`` or ``HOT_UPDATE``.
    arguments : CommandArguments
        What travels with it, as far as it is known before the group is looked at.
    deadline_s : float
        Seconds after which an undecided command is aborted.
    settle_s : float
        Seconds after a decision until the caller is told who is not done.
    wait_s : float
        Seconds to wait for another controller to finish its command.
    still_wanted : callable or None
        Asked once it is this request's turn, before anything is written.
    fallback : str or None
        Why an update that was asked for hot is done in place.
    """

    operation: Operation
    arguments: CommandArguments
    deadline_s: float
    settle_s: float
    wait_s: float = 0.0
    still_wanted: Callable[[], bool] | None = None
    fallback: str | None = None

    def consistent(self) -> CommandRequest:
        """Return this request, an update, if its arguments go together.

        Raises
        ------
        BadInputError
            If the tags do not go with the other arguments.
        RefusedError
            If a partial update is to be hot.
        BadInputError
            If the version is none.
        """
        asked = self.arguments
        if asked.version is not None:
            number_of(checked_version(asked.version))
        if self.operation.is_hot and asked.tags != ALL_TAGS:
            why = "a hot update replaces both"
            raise errors.tags_contradict(tags=named(asked.tags), argument="hot", why=why)
        if Tag.WEIGHTS not in asked.tags:
            of_weights = {
                "version": asked.version is not None,
                "force": asked.reload,
                "partial": asked.partial,
            }
            for argument, given in of_weights.items():
                if given:
                    why = "no weights are loaded"
                    raise errors.tags_contradict(tags=named(asked.tags), argument=argument, why=why)
        if asked.partial and self.operation.is_hot:
            raise partial_update_refused(why="a hot update stages every tensor anew")
        return self

    def in_place(self, why: str) -> CommandRequest:
        """Return the ordinary update that does the same with a longer pause."""
        return replace(self, operation=Operation.UPDATE, fallback=why)

    def possible_from(self, state: WeightState) -> CommandRequest:
        """Return what is to be done where the group is: this, or in place what cannot be hot there.

        Raises
        ------
        RefusedError
            If it cannot be hot, and must not be done otherwise.
        """
        if not self.operation.is_hot or state is WeightState.NORMAL:
            return self
        refusal = errors.nothing_served(state=state.name)
        if self.arguments.hot_fallback is HotFallback.REFUSE:
            raise refusal
        return self.in_place(str(refusal))

    def after(self, error: WsmError) -> CommandRequest | None:
        """Return what is to be tried once its command has ended so; None: nothing.

        Only a hot update whose fallback says so is done in place, and only for refusals that an ordinary
        update does not share: a version that cannot be read is no better in place.
        """
        allowed = self.operation.is_hot and self.arguments.hot_fallback is HotFallback.IN_PLACE
        refused = isinstance(error, CommandRefusedError | RankFailedError) and error.context["no_room"]
        return self.in_place(str(error)) if allowed and refused else None


def request_id_of(asked: str | None) -> str:
    """Return the name of a request, drawn if none was given.

    Raises
    ------
    wsm.command.RequestIdError
        If it cannot name a request.
    """
    return uuid.uuid4().hex if asked is None else checked_request_id(asked)


def choice_of(kinds: type[_Choice], asked: object, refusal: Callable[..., BadInputError]) -> _Choice:
    """Return the member of an enumeration that was asked for, by itself or by its value.

    Raises
    ------
    BadInputError
        As `refusal` makes it, if there is none.
    """
    try:
        return kinds(asked)
    except ValueError:
        raise refusal(value=asked, allowed=[str(each.value) for each in kinds]) from None


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
            admitted = self._admit(request, view)
            if request.still_wanted is not None and not request.still_wanted():
                operation = request.operation.name.lower()
                raise CommandWithdrawnError(operation=operation, request_id=request.arguments.request_id)
            asked, held = request.arguments, admitted.held
            if needs_no_work(
                held,
                request.operation,
                asked.tags,
                version=None if asked.reload else asked.version,
                committed=admitted.committed.number,
                owed=admitted.owed,
            ):
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
                    return replace(unneeded, seconds=(self._clock.monotonic_ns() - begun_ns) / 1e9)
                following = None if given_up.is_set() else request.after(error)
                if following is None:
                    raise
            # The update in place that a hot one falls back to, with the role still held.
            again = self._admit(following, self._group.view())
            return self._write(following, again, given_up, over).drive()

        return Pending.driven(transaction, over, drive)

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
        if inherited(view) is Inheritance.NOTHING or view.command.operation is Operation.NONE:
            return view
        Transaction(
            self._group,
            view.command,
            self._group.arguments(view.command) or CommandArguments("its arguments are gone"),
            deadline_s=settle_s,
            settle_s=settle_s,
            clock=self._clock,
            previous=self._group.known_version(view),
        ).complete()
        return self._group.view()

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
        with ExitStack() as undo:
            taken = None
            if self._engine_words.suffixes:
                taken = self._words_taken(request, admitted.held)
                undo.callback(taken.give_back)
            arguments = replace(
                request.arguments,
                before=state_before(admitted.held, owed=admitted.owed),
                deadline_s=request.deadline_s,
            )
            word = admitted.command._replace(operation=request.operation)
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
            previous=admitted.committed.number,
            given_up=given_up,
            fallback=request.fallback,
        )

    def _words_taken(self, request: CommandRequest, held: Resident) -> TakenWords:
        """Take FastDeploy's words, as an engine would that asks for the same; a hot update leaves them."""
        before = WeightState(held.as_whole.fastdeploy_code)
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
            version=committed.number if held.weights is WeightState.NORMAL else None,
            previous_version=committed.number,
            manifest_digest=digests.pop() if len(digests) == 1 else None,
            loaded=False,
            seconds=0.0,
            pause_s=0.0,
            ranks=reports,
            tags=named(request.arguments.tags),
            missing=named(held.missing),
            restorable=outcome.restorable(reports),
        )
