"""One request of a caller, from the controller role to its receipt; driven by one thread.

The role, what a dead controller left, admission, the engine's words, the command, its fallback, and the
restore of the version before where an update in place has failed: in this order. The role stays with the
request until all of it is over. :mod:`wsm.states.epochs` decides whether the group is owed that version.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from msgspec import structs

from wsm.clock import Clock
from wsm.command import MAX_REQUEST_ID, ReportFormatError, partial_update_refused
from wsm.committed_record import CommittedRecord, CommittedRecordError, commit_report
from wsm.config import EngineWordsConfig
from wsm.controller import outcome
from wsm.controller._command_request import CommandRequest
from wsm.controller._drive import Drive
from wsm.controller._engine_words import answer_words, take_words
from wsm.controller._opening import (
    answered_at_once,
    require_able,
    require_opened,
    restore_of,
    under_hold,
)
from wsm.controller._transaction import Transaction, decision_held
from wsm.controller.errors import MixedGroupError, withdrawn
from wsm.controller.group_view import GroupAccess, commanded_version, known_arguments
from wsm.controller.pending import Pending, Verdict, decided_otherwise
from wsm.errors import RefusedError, WsmError
from wsm.receipt import Outcome, Receipt
from wsm.signals.owner_settings import settings_in
from wsm.states import decide, epochs, holding
from wsm.states.decide import Resident
from wsm.states.engine_words import Given
from wsm.states.group import Opens
from wsm.states.view import View
from wsm.states.vocabulary import After, Tag, WeightState
from wsm.states.words import Decider, Operation, StatusCode
from wsm.status.facts import who

#: Seconds that a command which a dead controller left open may take to settle where the caller has no time.
TAKEOVER_S = 1.0

#: Seconds for a restore whose request says nothing of them any more.
RESTORE_S = 300.0


class _Admitted(NamedTuple):
    """What the group is that can be asked a request now."""

    view: View
    held: Resident
    owed: bool
    committed: CommittedRecord


class Execution:
    """The execution of one request to a group.

    `access`: the group; in use from now until :meth:`run` or :meth:`settle` ends. `engine_words`:
    FastDeploy's words of the same group; each command takes them first. `verdict`: the decision of its
    caller, if that makes it.
    """

    def __init__(
        self,
        access: GroupAccess,
        engine_words: EngineWordsConfig,
        clock: Clock,
        request_id: str,
        verdict: Verdict | None = None,
    ) -> None:
        access.begin_use()
        here = access.group.meanwhile is not None
        self.pending = Pending(request_id, access.group.ring, verdict, here=here)
        self._access = access
        self._group = access.group
        self._engine_words = engine_words
        self._clock = clock
        self._drive = Drive(access.group)
        self._ending = ExitStack()  # what is to be done when the request is over
        self._ending.callback(access.end_use)

    def run(self, request: CommandRequest) -> Receipt:
        """Carry the request out; blocks up to its deadlines, raises as :meth:`wsm.Controller.update`."""
        with self._ending:
            self._take_role(request.wait_s, request.operation.name.lower())
            settle_s = min(request.settle_s, max(request.wait_s, TAKEOVER_S))
            view = self._complete_inherited(settle_s, patient=request.wait_s > 0)
            if request.operation.is_of_admission:
                self._require_wanted(request)
                return self._of_admission(request, view)
            request = under_hold(self._group, request, view)
            admitted = self._admit(request, view)
            self._require_wanted(request)
            asked, held = request.arguments, admitted.held
            was_held = view.committed.held
            changes_admission = holding.held_after(asked.after, held=was_held) is not was_held
            if decide.needs_no_work(
                held,
                request.operation,
                asked.tags,
                version=None if asked.reload else asked.version,
                committed=admitted.committed.version,
                owed=admitted.owed,
            ):
                if changes_admission:
                    return self._of_admission(request.of_admission(), view)
                return self._receipt_of_no_work(request, admitted)
            request = request.possible_from(held.as_whole)
            deadline_s = asked.restore_s or request.deadline_s
            wanted = epochs.owes_version_before(
                Operation.UPDATE,
                on_failure=request.on_failure or settings_in(self._group.segment.settings).on_failure,
                serves=held.serving and admitted.committed.version is not None,
                restorable=True,
            )
            give = partial(self._with_fallback, request, admitted, changes_admission=changes_admission)
            return self._followed_by_restore(give, deadline_s, request.settle_s, wanted=wanted)

    def settle(
        self,
        request_id: str | None,
        *,
        commit: bool,
        settle_s: float,
        wait_s: float,
        still_wanted: Callable[[], bool] | None = None,
    ) -> Receipt:
        """Commit or abort the open command that no process drives. Blocks.

        Raises
        ------
        RefusedError
            If its decision is another one, or another caller has to make it.
        WsmError
            As :meth:`run`.
        """
        with self._ending:
            self._take_role(wait_s, "commit" if commit else "abort")
            view = self._group.view()
            arguments = known_arguments(self._group, view)
            found = decide.objection(
                view,
                commit=commit,
                leased=arguments.leased,
                asked=request_id is None or request_id == arguments.request_id,
            )
            if found is decide.Objection.OTHERWISE:
                raise decided_otherwise(arguments.request_id, committed=not commit)
            if found is not None:
                raise RefusedError(
                    f"{request_id or 'any request'} cannot be decided: {found.value}; nothing was changed. "
                    "Prepare it again",
                    code="not-prepared",
                    request_id=request_id or "",
                    found=found.value,
                )
            if commit and arguments.after is After.SERVE:
                brings = commanded_version(self._group, view, arguments)
                require_opened(self._group.known_hold(view), arguments, brings)
            self.pending.request_id = arguments.request_id
            if not (still_wanted is None or view.command.operation.is_decision or still_wanted()):
                raise withdrawn("commit", arguments.request_id)
            self.pending.verdict = Verdict(self._clock)
            self.pending.verdict.decide(commit=commit)
            self.pending.wrote(view.command.sequence)
            transaction = Transaction(
                self._group, arguments, self._clock, settle_s, command=view.command, pending=self.pending
            )
            deadline_s = arguments.restore_s or arguments.deadline_s or RESTORE_S
            return self._followed_by_restore(partial(transaction.run, self._drive), deadline_s, settle_s)

    # -- before the command ------------------------------------------------------------------------

    def _take_role(self, wait_s: float, operation: str) -> None:
        def look() -> None:
            if self.pending.given_up.is_set():
                raise withdrawn(operation, self.pending.request_id)

        self._drive.take_role(wait_s, look)
        self._ending.callback(self._drive.release)
        self._ending.enter_context(self._group.journal.open_for_a_command())

    def _require_wanted(self, request: CommandRequest) -> None:
        unwanted = request.still_wanted is not None and not request.still_wanted()
        if unwanted or self.pending.given_up.is_set():
            raise withdrawn(request.operation.name.lower(), request.arguments.request_id)

    def _complete_inherited(self, settle_s: float, *, patient: bool) -> View:
        """Bring a command to its end that another controller left open; the role proves that it is gone.

        `patient`: wait for stopped processes, too, which may be continued.
        """
        view = self._group.look().view
        if decide.is_over(view) or view.command.operation is Operation.NONE:
            return view
        arguments = self._group.arguments(view.command)
        if decide.is_held(view, leased=arguments is not None and arguments.leased):
            raise decision_held(view, arguments, self._group.facts().decision_left_s)
        Transaction(
            self._group,
            known_arguments(self._group, view),
            self._clock,
            settle_s,
            command=view.command,
            for_stopped=patient,
        ).complete(self._drive)
        return self._group.view()

    def _admit(self, request: CommandRequest, view: View) -> _Admitted:
        operation, tags = request.operation, request.arguments.tags
        require_able(self._group, view, operation)
        held = decide.resident_for(view, operation, tags)
        if held is None:
            states = {rank: str(resident) for rank, resident in enumerate(decide.resident_on_each(view))}
            ranks = "; ".join(f"{who(self._group.named(rank))} {state}" for rank, state in states.items())
            raise MixedGroupError(
                f"the ranks cannot be commanded together as they are ({ranks}); clear the group first, "
                "weights and KV cache together, which repairs faulted ranks",
                states=states,
            )
        if request.arguments.partial and not held.serving:
            raise partial_update_refused(why=f"every rank is {held.as_whole.name}")
        try:
            committed = self._group.committed(view)
        except CommittedRecordError:
            if not (request.arguments.clears or Tag.WEIGHTS in tags):
                raise  # what it leaves would be committed anew under a name that is not known
            committed = CommittedRecord(view.committed.sequence)
        return _Admitted(view, held, epochs.unrestored(view), committed)

    def _receipt_of_no_work(self, request: CommandRequest, admitted: _Admitted) -> Receipt:
        group, view, held, committed = self._group, admitted.view, admitted.held, admitted.committed
        there, loaded = request.operation is not Operation.CLEAR, held.weights is WeightState.NORMAL
        how, sequence, reports = Outcome.ALREADY_CLEARED, view.command.sequence, []
        if there:
            how = Outcome.ALREADY_SERVED if held.serving else Outcome.ALREADY_HELD
            sequence = committed.load_sequence
            origin, ranks = view.command._replace(sequence=sequence), range(group.participants)
            found = [group.report(rank, origin, StatusCode.DONE_COMMITTED) for rank in ranks]
            reports = [report for report in found if report is not None]
        return outcome.receipt(
            group,
            view,
            request.arguments,
            how,
            reports,
            version=committed.version if loaded else None,
            previous=committed.version,
            sequence=sequence,
            content_digest=committed.content_digest if loaded else None,
        )

    # -- the command -------------------------------------------------------------------------------

    def _with_fallback(
        self, request: CommandRequest, admitted: _Admitted, *, changes_admission: bool
    ) -> Receipt:
        """Give the command; after a refusal that allows it, the update in place or what is left of it."""
        asked, begun_ns = request.arguments, self._clock.monotonic_ns()
        unneeded = None
        # Only the ranks can find out that what is announced is held; the receipt is for that case.
        if asked.version is None and not (asked.clears or asked.reload or asked.tags & admitted.held.missing):
            unneeded = self._receipt_of_no_work(request, admitted)
        try:
            return self._give(request, admitted.view, admitted)
        except WsmError as error:
            held_already = unneeded is not None and outcome.found_held(error)
            if held_already and unneeded is not None and not changes_admission:
                return structs.replace(unneeded, seconds=(self._clock.monotonic_ns() - begun_ns) / 1e9)
            following = request.of_admission() if held_already else request.after(error)
            taken_back = self.pending.verdict is not None and self.pending.verdict.commits is False
            if following is None or self.pending.given_up.is_set() or taken_back:
                raise
        now = self._group.view()
        if following.operation.is_of_admission:  # with the words of the command that found this
            return self._give(following, now, takes_words=False)
        return self._give(following, now, self._admit(following, now))

    def _of_admission(self, request: CommandRequest, view: View) -> Receipt:
        """Hold the group or release it, or return a receipt where no rank is to be asked."""
        receipt = answered_at_once(self._group, request, view)
        return self._give(request, view) if receipt is None else receipt

    def _give(
        self,
        request: CommandRequest,
        view: View,
        admitted: _Admitted | None = None,
        *,
        takes_words: bool = True,
    ) -> Receipt:
        """Take FastDeploy's words, give the command, and drive it; None `admitted`: a hold or a release.

        The words are given back if the command cannot be written.
        """
        operation, takes_words = request.operation, takes_words and bool(self._engine_words.suffixes)
        if operation is not Operation.RELEASE and not view.command.commands_left:  # that is let through
            raise RefusedError(
                f"command {view.command.sequence} was the last one that this group can number. It serves on, "
                "and is restored where a rank is lost. End all of its processes and start it again: its new "
                "segment counts from 0",
                code="commands-used-up",
                sequence=view.command.sequence,
            )
        if admitted is None:
            require_able(self._group, view, operation)
            each = decide.resident_on_each(view)
            before, restores = decide.before_admission(each, owed=epochs.unrestored(view))
            opens = Opens(operation, before=before, restores=restores)
            now = self._group.status().engine_state if takes_words else None
            shown = WeightState.CLEARED if now is None else now
        else:
            held, committed = admitted.held, admitted.committed
            opens = Opens(
                operation,
                before=decide.state_before(held, owed=admitted.owed),
                on_failure=request.on_failure or settings_in(self._group.segment.settings).on_failure,
                restorable=committed.version is not None and self._can_be_loaded_again(committed),
            )
            shown = WeightState.CLEARED if view.committed.held else held.as_whole
        transaction = Transaction(
            self._group,
            structs.replace(request.arguments, deadline_s=request.deadline_s),
            self._clock,
            request.settle_s,
            opens=opens if self.pending.verdict is None else opens._replace(decider=Decider.CALLER),
            pending=self.pending,
            fallback=request.fallback,
        )
        if takes_words:
            self._take_words(request, view, WeightState(shown.fastdeploy_code))
        return transaction.run(self._drive)

    def _can_be_loaded_again(self, committed: CommittedRecord) -> bool:
        """Whether no rank says of the committed version that it was streamed, or put on what is gone."""
        for rank in range(self._group.segment.world_size):
            with suppress(ReportFormatError):
                report = commit_report(self._group.segment, rank, committed.load_sequence)
                facts = {} if report is None else report.facts
                if facts.get("streamed") or facts.get("restorable") is False:
                    return False
        return True

    def _take_words(self, request: CommandRequest, view: View, shown: WeightState) -> None:
        last, suffixes = self._group.arguments(view.command), self._engine_words.suffixes
        is_updates = last is not None and last.request_id == Given.UPDATE.request_id
        wish = view.command.operation.is_abort and is_updates
        # As if an engine asked for it. A hot update leaves the words: one that said UPDATING would keep the
        # engine from sending requests to a group that serves. A hold does as a clear where there is something
        # to clear, and a release as an update.
        holds = request.operation is Operation.HOLD
        asked = WeightState.CLEARING if holds or request.arguments.clears else WeightState.UPDATING
        leaves = request.operation.is_hot or (holds and shown is not WeightState.NORMAL)
        taken = take_words(
            self._engine_words,
            before=shown,
            asked=None if leaves else asked,
            failed_wish=wish,
            directory=self._access.directory,
        )
        if request.arguments.leased and taken:
            answer_words(taken, asked, None, gives_back=True)
            raise RefusedError(
                "a lease cannot hold an update in place of an engine that waits at its words "
                f"{', '.join(map(str, suffixes))}; nothing was changed: prepare it hot, or in a "
                "process that lives until the decision",
                code="lease-and-words",
                words=tuple(map(str, suffixes)),
            )
        before = self.pending.sequence

        def answer() -> None:
            """Let the words say what the group is; what was aborted, or not written, ends no wish."""
            if self.pending.sequence == before:
                answer_words(taken, asked, None, gives_back=True)
                return
            status = self._group.status()
            ended = wish and status.over and Operation[status.operation].is_abort and status.serving
            answer_words(taken, asked, status.engine_state, gives_back=ended)

        if taken:
            self._ending.callback(answer)

    # -- the restore -------------------------------------------------------------------------------

    def _followed_by_restore(
        self, give: Callable[[], Receipt], deadline_s: float, settle_s: float, *, wanted: bool = False
    ) -> Receipt:
        """Give the command, restore what the group is owed then, and return or raise how both ended.

        `wanted`: whether the version before is wanted also where the group is not owed it, since it cannot be
        loaded again.
        """
        ended: Receipt | WsmError
        try:
            ended = give()
        except WsmError as error:
            ended = error
        receipt, version, failure = None, None, None
        if isinstance(ended, WsmError) or ended.outcome is Outcome.ABORTED:
            receipt, version, failure = self._restored(deadline_s, settle_s, wanted=wanted)
        untold = "" if failure is None else f"version {version} does not serve again: {failure}"
        if isinstance(ended, WsmError):
            if receipt is not None:
                how, hold = ("serves", "") if receipt.hold is None else ("is loaded", ", held as before")
                ended.followed_by(f"version {version} {how} again{hold}", restored=version)
            elif failure is not None:
                ended.followed_by(untold, restored=None, not_restored=failure.code)
            raise ended
        if failure is not None:
            return structs.replace(ended, warning=untold)
        if receipt is None:
            return ended
        return structs.replace(
            ended,
            version=version,
            missing=receipt.missing,
            serving=receipt.serving,
            hold=receipt.hold,
            restored=True,
        )

    def _restored(
        self, deadline_s: float, settle_s: float, *, wanted: bool
    ) -> tuple[Receipt | None, str | None, WsmError | None]:
        """Restore what the group is owed; return the receipt, the version, and why it does not serve."""
        version = ""
        try:
            view = self._group.view()
            version = self._group.committed(view).version or ""
            if epochs.is_to_be_restored(view):
                name = f"restore-of-{self.pending.request_id}"[:MAX_REQUEST_ID]
                arguments = restore_of(self._group, view, name, deadline_s)
                receipt = Transaction(self._group, arguments, self._clock, settle_s).run(self._drive)
                return receipt, receipt.version, None
            gone = view.command.operation is Operation.ABORT and decide.is_over(view)
            if wanted and gone and decide.missing_anywhere(view) and not view.command.owes:
                raise _nothing_to_restore(version, "its source does not keep it")
        except WsmError as error:
            if not version:  # the words cannot be read: the request's own error says so
                return None, None, None
            if outcome.is_gone(error):
                error = _nothing_to_restore(version, error.context["cause"])
            return None, version, error
        return None, None, None


def _nothing_to_restore(version: str, cause: str) -> RefusedError:
    return RefusedError(
        f"version {version} cannot be loaded again: {cause}; load a version that is there",
        code="nothing-to-restore",
        version=version,
        cause=cause,
    )
