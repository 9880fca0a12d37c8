"""One open command, as its controller or a successor sees it: time, deaths, reports, its caller's verdict.

What to write is decided by :mod:`wsm.states.group`, and stored by :mod:`._drive`. The process has the role.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wsm import log, traces
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.controller import outcome
from wsm.controller._drive import Drive, Kind
from wsm.controller.errors import DecisionHeldError, EpochEndedError, UnsettledError
from wsm.controller.group_view import GroupView, Look, commanded_version
from wsm.controller.outcome import LOOK_S, CommandWatch
from wsm.controller.pending import Pending
from wsm.errors import GroupError, RefusedError, WsmError
from wsm.journal import entry as kinds
from wsm.receipt import Outcome, Receipt
from wsm.states import decide
from wsm.states.engine_words import Given
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, May, Opens
from wsm.states.view import View
from wsm.states.vocabulary import After, Tag
from wsm.states.words import CommandWord, Operation, StatusCode
from wsm.status.culprits import Situation, doings, in_sentence, late_ranks
from wsm.status.facts import who, whose_processes
from wsm.status.reading import read_journal

_log = log.logger("controller")


def decision_held(
    view: View, arguments: CommandArguments | None, left_s: float | None = None
) -> DecisionHeldError:
    """Return the error for a process that may not decide the open command of `view`, and how long not."""
    request_id = "its arguments are gone" if arguments is None else arguments.request_id
    lease_s = None if arguments is None else arguments.lease_s
    by = f"its caller's, for {lease_s or 0:g} s from the moment when all were prepared"
    return DecisionHeldError(
        f"command {view.command.sequence} ({request_id}) is prepared, and its decision is {by}; wait for "
        "'wsm commit' or 'wsm abort', or until that is over",
        sequence=view.command.sequence,
        request_id=request_id,
        by=by,
        left_s=left_s,
    )


class Transaction(Kind):
    """A command that is given, or was given by another process, until its caller is told how it ended.

    `clock`: for its deadline, which its arguments say, and for how long it takes. `settle_s`: seconds after a
    decision until the caller is told who is not done. `opens`: the command to be given. None, without
    `command`: the restore of what the group is owed. `command`: the word of a command that is open already.
    `pending`: the caller's hold of the request, which says whether it is given up, and its decision.
    `for_stopped`: whether a stopped rank is waited for like any other. `fallback`: for the receipt: why this
    command is not the hot one that was asked for.
    """

    when_unreadable = False

    def __init__(
        self,
        group: GroupView,
        arguments: CommandArguments,
        clock: Clock,
        settle_s: float,
        *,
        opens: Opens | None = None,
        command: CommandWord | None = None,
        pending: Pending | None = None,
        for_stopped: bool = False,
        fallback: str | None = None,
    ) -> None:
        super().__init__(group)
        view = group.view()
        self._pending = pending or Pending(arguments.request_id, group.ring)
        self._arguments = arguments
        self._clock = clock
        self._settle_s = settle_s
        self._deadline_s = settle_s if command is not None else arguments.deadline_s or math.inf
        self._for_stopped = for_stopped
        self._fallback = fallback
        self._opens = opens
        self.is_written = command is not None
        self._is_inherited = self.is_written and self._pending.verdict is None
        self._command = command or view.command
        self._began_ns = self._clock.monotonic_ns()
        self._decided_ns: int | None = None
        self._previous = group.known_record(view).version
        self._prepared_ns: int | None = None
        self._left_s = 0.0  # until the deadline, or of the lease
        self._handed_over: Receipt | None = None
        self._lease_over = self._is_late = self._gave_up = False
        self._situation = Situation()
        self._watch = CommandWatch(group, self._command, self._clock)
        self._drive: Drive | None = None

    @property
    def lost(self) -> list[int]:
        """Whose processes are gone, as far as is seen."""
        return self._watch.lost

    @property
    def _said(self) -> dict[str, Any]:
        epoch, sequence = self._command[:2]
        return {"epoch": epoch, "sequence": sequence, "request_id": self._arguments.request_id}

    @property
    def _name(self) -> str:
        return self._command.operation.name.lower().replace("_", " ")

    def run(self, drive: Drive) -> Receipt:
        """Bring the command to its end; blocks until then, raises as :meth:`wsm.Controller.update`."""
        self._drive = drive
        try:
            todo = drive.run(self)
        except BaseException:
            if self.is_written:
                self._tell_spans()
            raise
        return self.result(todo, drive.look.view)

    def result(self, todo: GroupTodo, view: View) -> Receipt:
        """Return how the command ended, which is `todo`'s to say, or raise that."""
        try:
            if not self.is_written:
                raise RefusedError(
                    f"{self._arguments.request_id} was not given: a rank is FAULTED, or the group is owed no "
                    "version any more; clear the group, weights and KV cache together, and update it",
                    code="nothing-to-restore",
                    version=self._arguments.version or "",
                )
            if view.command[:2] == self._command[:2] and decide.is_over(view):
                return self._ended(view)
            if self._handed_over is not None:
                return self._handed_over
            if todo is GroupTodo.HELD:
                raise decision_held(view, self._arguments)
            raise self._unsettled(view)
        finally:
            self._tell_spans()

    def complete(self, drive: Drive) -> None:
        """Bring a command that a dead controller left open to its end, in this thread, with this role.

        Blocks up to the settle time. How it ends is for its own caller, who is dead; it is logged.
        """
        try:
            self.run(drive)
        except WsmError as error:
            _log.warning(log.DECISION_COMPLETED, **self._said, error=str(error))
        else:
            _log.warning(log.DECISION_COMPLETED, **self._said)

    # -- for the shell -----------------------------------------------------------------------------

    def known(self, look: Look, state: GroupState, *, own: bool) -> Known:  # noqa: ARG002 - with the role
        view, asked = look.view, self._arguments
        known = Known(May.DRIVE, restores=asked.restores, of_admission=asked.of_admission, after=asked.after)
        if not self.is_written:
            return replace(known, wanted=self._opens, restore_limit=int(self._opens is None))
        if view.command[:2] != self._command[:2]:
            # What is decided in another epoch, or about another command, is not this one's to write.
            (epoch, sequence), now = self._command[:2], self._group.status().sentence()
            raise EpochEndedError(
                f"{self._name} (epoch {epoch}, sequence {sequence}) was cut short by the end of its epoch: a "
                f"rank was lost [{now}]; ask again, the group restores what it was before",
                operation=self._name,
                epoch=epoch,
                sequence=sequence,
                group=now,
            )
        if decide.is_over(view):
            return known
        self._watch.look(look, woken=self._drive is not None and self._drive.woken)
        operation = view.command.operation
        if operation.is_decision:  # perhaps by a controller that is dead
            self._decided_ns = self._decided_ns or self._clock.monotonic_ns()
            # A caller that takes its command back wants it settled; one whose command failed, who failed.
            stuck = self._watch.is_hopeless(
                view,
                waited_s=self._elapsed_s(self._decided_ns),
                settle_s=self._settle_s,
                patient=self._for_stopped if self._is_inherited else self._gave_up,
            )
            if view.committed.sequence != view.command.sequence:
                known = self.known_of_command(known, view, asked)
            return replace(known, stuck=stuck)
        verdict = None if self._pending.verdict is None else self._pending.verdict.commits
        self._gave_up = self._pending.given_up.is_set() or verdict is False
        heard_after_s = 0.0  # since the caller of a prepared command said its commit
        if self._pending.verdict is not None and self._prepared_ns is not None and verdict:
            heard_after_s = self._elapsed_s(self._pending.verdict.at_ns or self._clock.monotonic_ns())
        self._left_s = self._deadline_s - self._elapsed_s(self._began_ns)
        if self._prepared_ns is not None:  # from then on the lease alone counts
            lease_s = asked.lease_s
            self._left_s = LOOK_S if lease_s is None else lease_s - self._elapsed_s(self._prepared_ns)
        self._is_late = self._left_s + heard_after_s < 0
        self._lease_over = self._is_late and self._prepared_ns is not None
        # A commit that was said in time is written at once, unless a rank's word is damaged meanwhile.
        late_heard = heard_after_s > self._settle_s
        return replace(
            self.known_of_command(known, view, asked),
            expired=self._is_late and not self._lease_over,
            gave_up=self._gave_up or late_heard,
            verdict=verdict,
            leased=asked.leased,
            lease_over=self._lease_over,
            dead=frozenset(self._watch.lost),
            hangs=bool(self._watch.hangs),
        )

    def arguments(self, opens: Opens | None) -> CommandArguments:  # noqa: ARG002 - it has one command
        return self._arguments

    def stores(self, view: View, move: GroupMove) -> Mapping[str, Any]:
        """Keep when a command and its decision are written, and why it is aborted.

        A command begins before its word stands: a rank may have done all of it before this thread runs again.
        """
        if move.command is None:
            return {}
        now_ns = self._clock.monotonic_ns()
        if not move.command.operation.is_decision:
            self._began_ns = now_ns
            return {}
        self._decided_ns = now_ns
        if not move.command.operation.is_abort:
            return {}
        self._situation = self._seen(view)
        because = self._because()
        return {"because": because} if because else {}

    def wrote(self, command: CommandWord, arguments: CommandArguments) -> None:
        self._command, self._arguments, self.is_written = command, arguments, True
        self._watch = CommandWatch(self._group, command, self._clock)
        _log.info("command.issued", **self._said, operation=command.operation.name)
        self._pending.wrote(command.sequence)

    def tell_prepared(self, view: View) -> None:
        """Tell the caller that all are PREPARED; one whose lease holds the decision goes on without this."""
        self._prepared_ns = self._clock.monotonic_ns()
        receipt = self._receipt(view, Outcome.PREPARED, StatusCode.PREPARED)
        if self._pending.verdict is None:
            return
        if self._arguments.leased and self._pending.verdict.commits is None:
            self._handed_over = receipt
        if not self._pending.verdict.prepared.done():
            self._pending.verdict.prepared.set_result(receipt)

    def wait_s(self) -> float:
        """Seconds until its ranks are to be looked at again."""
        return self._watch.wait_s(LOOK_S if self._decided_ns else self._left_s)

    # -- how it ended ------------------------------------------------------------------------------

    def _tell_spans(self) -> None:
        if self._handed_over is not None or not traces.wanted():
            return
        with suppress(WsmError, ValueError):  # the segment was closed under a command that outlived it
            segment, command = self._group.segment, self._command
            traces.tell_command(
                read_journal(segment), epoch=command.epoch, sequence=command.sequence, group=segment.name
            )

    def _ended(self, view: View) -> Receipt:
        if view.command.operation.is_commit:
            operation = self._command.operation  # COMMIT where another process had it decided before
            how = Outcome.UPDATED
            if operation.is_of_admission or self._arguments.of_admission:
                holds = operation is Operation.HOLD or self._arguments.after is After.HELD
                how = Outcome.HELD if holds else Outcome.RELEASED
            return self._receipt(view, how, StatusCode.DONE_COMMITTED)
        if view.command.operation is Operation.CLEAR:
            return self._receipt(view, Outcome.CLEARED, StatusCode.DONE_CLEARED)
        if self._was_taken_back():
            code = StatusCode.DONE_FAULTED
            faulted = [rank for rank, word in enumerate(view.statuses) if word.code is code]
            if not faulted:
                return self._receipt(view, Outcome.ABORTED, StatusCode.DONE_KEPT)
            status = self._group.status()
            now, told = status.sentence(), ", ".join(map(who, faulted))
            raise self._told(
                GroupError(
                    f"{self._arguments.request_id} was taken back, but {told} could not release its memory "
                    f"(its journal names the action): {now}. {' '.join(status.advice)}",
                    code="not-given-back",
                    request_id=self._arguments.request_id,
                    rank=faulted[0],
                    ranks=tuple(faulted),
                    group=now,
                )
            )
        raise self._aborted()

    def _was_taken_back(self) -> bool:
        """Whether the command was aborted because its caller wanted that."""
        then = self._situation
        said = self._pending.verdict is not None and self._pending.verdict.commits is False
        return said and not (then.lost or then.hangs or then.failed)

    def _because(self) -> str:
        """Say why the command is aborted, where no rank reports that; empty: a rank does."""
        reasons = (
            (self._is_inherited, "its controller was gone"),
            (bool(self._watch.lost), f"{whose_processes(self._watch.lost)} was gone"),
            (self._lease_over, "its lease was over"),
            (self._gave_up, "its caller gave it up"),
            (self._is_late, "its deadline was over"),
        )
        return next((why for holds, why in reasons if holds), "")

    def _seen(self, view: View) -> Situation:
        """Keep what there is to be said of the ranks now, for the error that may come of it."""
        watch, facts = self._watch, self._group.facts()
        return Situation(
            late=late_ranks(facts),
            doing=doings(facts),
            lost=tuple(watch.lost),
            broken=outcome.broken(view, watch.lost),
            hangs=tuple(watch.hangs),
            deadline_s=self._deadline_s,
            gave_up=self._gave_up,
            expired=self._elapsed_s(self._began_ns) > self._deadline_s,
            failed=outcome.failed(self._group, self._command),
        )

    def _unsettled(self, view: View) -> Exception:
        waiting = decide.waiting_on(view)
        lost = tuple(rank for rank in self._watch.lost if rank in waiting)
        broken = outcome.broken(view, lost)
        # A step that raised after the decision raised because of it, and a process that ends after the
        # deadline ends because of what was late then: the first cause is to blame for both.
        first = self._situation
        to_blame = lost if first.lost or (set(lost) - set(broken) and not first.expired) else ()
        self._situation = replace(
            self._situation,
            lost=to_blame,
            broken=broken,
            hangs=self._situation.hangs or tuple(self._watch.hangs),
        )
        if lost or view.command.operation.is_abort:
            return self._aborted()
        decision, late = view.command.operation.name, late_ranks(self._group.facts())
        waited_s = self._elapsed_s(self._decided_ns or self._began_ns)
        return UnsettledError(
            f"decided to {decision}, which is final; after {waited_s:.3g} s more, still waiting for "
            f"{in_sentence(late)}; see 'wsm explain', no other command is taken until it is over",
            request_id=self._arguments.request_id,
            decision=decision,
            waiting=late,
            waited_s=waited_s,
        )

    def _aborted(self) -> Exception:
        if self.unreadable is not None:
            _log.error(log.COMMAND_FAILED, **self._said, error=str(self.unreadable))
            return self.unreadable
        then, operation = self._situation, self._name
        if self._lease_over and not (then.lost or then.hangs or then.failed or self._gave_up):
            lease_s = self._arguments.lease_s or 0.0
            error: WsmError = GroupError(
                f"{operation} was aborted, since its caller neither committed nor aborted it within "
                f"{lease_s:g} s from the moment when all ranks were prepared "
                f"[{self._group.status().sentence()}]; prepare it again, with a longer lease",
                code="lease-over",
                group=self._group.segment.name,
                request_id=self._arguments.request_id,
                operation=operation,
                lease_s=lease_s,
            )
        else:
            request_id = self._arguments.request_id
            error = outcome.aborted(
                self._group, self._command, request_id=request_id, operation=operation, then=then
            )
        return self._told(error)

    def _told(self, error: WsmError) -> WsmError:
        """Log and journal the error that the command ends with, and return it."""
        said: dict[str, Any]
        if outcome.found_held(error):
            told, said = f"nothing to do: {error.context['cause']}", {"ended": Outcome.ALREADY_SERVED.value}
            _log.info(log.COMMAND_FINISHED, **self._said, outcome=told)
        else:
            ended = "refused" if isinstance(error, RefusedError) else "failed"
            told, said = str(error), {"ended": ended, "error": error.code}
            # Of a wish in FastDeploy's word the bridge and the loops log each new cause, not each try.
            tell = _log.info if self._arguments.request_id == Given.UPDATE.request_id else _log.error
            tell(log.COMMAND_FAILED, **self._said, error=told)
        self._group.journal.note(kinds.COMMAND_OVER, self._command, outcome=told, **said)
        return error

    def _receipt(self, view: View, how: Outcome, code: StatusCode) -> Receipt:
        found = outcome.reports(self._group, self._command, code) or []
        prepared = how is Outcome.PREPARED
        version = self._group.known_record(view).version
        if prepared:
            version = commanded_version(self._group, view, self._arguments)
        elif Tag.WEIGHTS in decide.missing_anywhere(view):
            version = None
        # A hot command's version is staged until the decision, which every rank has served until then.
        hot = self._command.operation.is_hot
        staged_ns = (self._decided_ns or self._began_ns) if hot else self._began_ns
        receipt = outcome.receipt(
            self._group,
            view,
            self._arguments,
            how,
            found,
            version=version,
            previous=self._previous,
            content_digest=None if version is None else self._group.known_record(view).content_digest,
            seconds=self._elapsed_s(self._began_ns),
            hot=hot,
            staging_s=(staged_ns - self._began_ns) / 1e9,
            fallback=self._fallback,
            partial=self._arguments.partial,
            lease_s=self._arguments.lease_s if prepared else None,
        )
        if prepared:
            return receipt
        _log.info(log.COMMAND_FINISHED, **self._said, outcome=how.value, seconds=receipt.seconds)
        measured: dict[str, Any] = {"pause_s": receipt.pause_s}
        if receipt.loaded:
            measured["bytes"] = sum(report.bytes for report in found)
        if receipt.content_digest is not None:
            measured["content_digest"] = receipt.content_digest
        if receipt.hot:
            measured["staging_s"] = receipt.staging_s
        self._group.journal.note(
            kinds.COMMAND_OVER, self._command, outcome=receipt.sentence(), ended=how.value, **measured
        )
        return receipt

    def _elapsed_s(self, since_ns: int) -> float:
        return (self._clock.monotonic_ns() - since_ns) / 1e9
