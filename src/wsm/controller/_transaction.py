"""One open command, from its word to its end: decided, committed, driven in a thread, and told to its caller.

What to write is decided by :mod:`wsm.states.decide`; this module brings time, deaths and reports to it, for a
controller, for its successor, and for the group that ends a command by itself. The writing process has the
controller role.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from wsm import log, traces
from wsm.clock import Clock
from wsm.command import CommandArguments
from wsm.committed_record import CommittedRecord, CommittedRecordError
from wsm.controller import errors, outcome
from wsm.controller._command_request import HeldDecision
from wsm.controller.errors import DecisionHeldError, EpochEndedError, UnsettledError
from wsm.controller.group_view import GroupView
from wsm.controller.outcome import LOOK_S, CommandWatch
from wsm.ending import result_of
from wsm.errors import RefusedError, WsmError
from wsm.receipt import Outcome, Receipt, named
from wsm.report import ReportFormatError
from wsm.states import decide, holding
from wsm.states import journal as kinds
from wsm.states.view import View
from wsm.states.vocabulary import After, Tag
from wsm.states.words import CommandWord, Decider, Operation, StatusCode
from wsm.status.blame import Situation
from wsm.status.reading import read_journal

_log = log.logger("controller")


class Due(NamedTuple):
    """What is to be written over an open command now.

    Parameters
    ----------
    word : Operation or None
        The decision; None: none yet, or none any more.
    agree, give_up, verdict : bool or None
        What it was decided by, as :func:`wsm.states.decide.decision` takes them.
    unusable : ReportFormatError or None
        Why what the participants prepared cannot be compared, and is not committed.
    """

    word: Operation | None
    agree: bool = False
    give_up: bool = False
    unusable: ReportFormatError | None = None
    verdict: bool | None = None
    operator: bool = False


def due_decision(group: GroupView, view: View, *, give_up: bool, verdict: bool | None = None) -> Due:
    """Read what the participants have prepared, and decide: COMMIT where all agree, ABORT where one does not.

    Where their words are there before their reports, that takes another look, unless `give_up`.
    """
    prepared, unusable = None, None
    if decide.all_prepared(view):
        try:
            prepared = outcome.reports(group, view.command, StatusCode.PREPARED)
        except ReportFormatError as error:
            unusable = error
        if prepared is None and unusable is None and not give_up:
            return Due(None)
    agree = prepared is not None and not outcome.disagreement(prepared)
    word = decide.decision(view, agree=agree, give_up=give_up, verdict=verdict)
    return Due(word, agree, give_up, unusable, verdict)


def write_decision(group: GroupView, view: View, due: Due) -> bool:
    """Write a decision, if there is one, over the command of `view`, and say so; return whether there is."""
    if due.word is None:
        return False
    command, journal = decide.decided(view, due.word), group.journal
    decided_at = journal.moment()
    group.write_command(command)
    said = {} if command.decider is Decider.CONTROLLER else {"verdict": due.verdict}
    journal.asked("decision", view, due.word, decided_at, agree=due.agree, give_up=due.give_up, **said)
    by = {} if command.decider is Decider.CONTROLLER else {"decider": command.decider.name}
    if due.operator:
        by["by"] = "an operator"
    journal.note(kinds.DECISION, command, decided_at, operation=due.word.name, **by)
    _log.info(log.COMMAND_DECIDED, epoch=command.epoch, sequence=command.sequence, decision=due.word.name)
    return True


def loads(arguments: CommandArguments) -> bool:
    """Whether a commit of the command brings weights."""
    return Tag.WEIGHTS in arguments.tags and not arguments.of_admission


def known_arguments(group: GroupView, view: View) -> CommandArguments:
    """Return the arguments of the command at hand; where they are damaged, what the ranks have said of them.

    That is what it loads, and whether the group is held behind it. A hold is without a name then.
    """
    found = group.arguments(view.command)
    if found is not None:
        return found
    gone = CommandArguments("its arguments are gone")
    for rank in range(group.participants):
        for code in (StatusCode.PREPARED, StatusCode.DONE_COMMITTED):
            with suppress(ReportFormatError):
                report = group.report(rank, view.command, code)
                if report is not None and report.held is not None:
                    after = After.HELD if report.held else After.SERVE
                    if report.loads:
                        return replace(gone, after=after)
                    # A KV cache alone has been worked at by actions; a hold or a release has built none.
                    built = "kv_bytes" in report.facts
                    tags = frozenset({Tag.KV_CACHE}) if built else frozenset[Tag]()
                    return replace(gone, after=after, tags=tags, of_admission=not built)
    return gone


def commanded_version(group: GroupView, view: View, arguments: CommandArguments | None) -> str | None:
    """Return the version that a decided commit brings; None while neither arguments nor a report says it.

    That is the one that was asked for, or else the one that the ranks found and agreed on. A rank that has
    committed already has written its last report over the one that it prepared with.
    """
    if arguments is not None and not loads(arguments):
        return group.committed(view).version  # what was committed stays; it may be none that is held now
    if arguments is not None and arguments.version is not None:
        return arguments.version
    for rank in range(group.participants):
        for code in (StatusCode.PREPARED, StatusCode.DONE_COMMITTED):
            with suppress(ReportFormatError):
                report = group.report(rank, view.command, code)
                if report is not None and report.version is not None:
                    return report.version
    return None


def complete_commit(group: GroupView, view: View, arguments: CommandArguments) -> bool:
    """Write the record and the word that a decided commit needs; return whether its version is known.

    Where a commit brings no version, and the record of the one that stays cannot be read, the word alone goes
    on: the command must come to its end, and what was not known is known no better.
    """
    try:
        version = commanded_version(group, view, arguments)
        if version is None and loads(arguments):
            return False
        record = committed_by(group, view, version, arguments)
    except CommittedRecordError as error:
        _log.error(log.RECORD_MISSING, error=str(error))
        held = holding.held_after(arguments.after, held=view.committed.held)
        group.write_committed(view.committed._replace(sequence=view.command.sequence, held=held))
        return True
    at, held = group.journal.moment(), record.word.held
    word = decide.committed(view, version, held=held)
    group.commit(view, record)
    group.journal.asked("committed", view, word, at, version=version, held=held)
    group.journal.write()
    return True


def committed_by(
    group: GroupView, view: View, version: str | None, arguments: CommandArguments
) -> CommittedRecord:
    """Return the record of a decided commit; one that loads nothing keeps what was loaded before."""
    sequence = view.command.sequence
    hold = None
    if holding.held_after(arguments.after, held=view.committed.held):
        hold = (group.hold(view) or {}) if arguments.hold is None else arguments.hold.facts()
    if not loads(arguments):
        return replace(group.committed(view), sequence=sequence, version=version, hold=hold)
    digests = set()
    for rank in range(group.participants):
        for code in (StatusCode.PREPARED, StatusCode.DONE_COMMITTED):
            with suppress(ReportFormatError):
                report = group.report(rank, view.command, code)
                if report is not None and report.manifest_digest is not None:
                    digests.add(report.manifest_digest)
    digest = digests.pop() if len(digests) == 1 else None
    load = arguments.load_options()
    if arguments.partial:  # a restore loads what it was put on as well
        with suppress(CommittedRecordError):
            load = {**group.committed(view).load, **load}
    return CommittedRecord(sequence, version, digest, sequence, hold, load=load)


_MAY_BE_COMMITTED = (
    "its decision is made outside, and may have been to commit it: a COMMIT that arrives later is refused"
)


def decision_held(view: View, arguments: CommandArguments | None) -> DecisionHeldError:
    """Return the error for a process that may not decide the open command of `view`."""
    request_id = "its arguments are gone" if arguments is None else arguments.request_id
    if view.command.decider is Decider.OUTSIDE:
        by, fix = (
            "made outside",
            "wait until it is known; 'wsm abort' gives it up, though it may be COMMIT there",
        )
    else:
        lease_s = None if arguments is None else arguments.lease_s
        by = f"its caller's, for {lease_s or 0:g} s from the moment when all were prepared"
        fix = "wait for 'wsm commit' or 'wsm abort', or until that is over"
    return DecisionHeldError(sequence=view.command.sequence, request_id=request_id, by=by, fix=fix)


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
    previous : int or None
        The version that was committed before it.
    given_up : threading.Event or None
        Set when the caller gives up; shared by the commands of one request.
    fallback : str or None
        For the receipt: why this command is not the hot one that was asked for.
    held : HeldDecision or None
        What who decides says of it; None: this object decides.
    operator : bool
        Whether that is said in the place of who decides outside.

    Attributes
    ----------
    request_id : str
        The caller's name for the request.
    sequence : int
        Which command it is.
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
        previous: str | None,
        given_up: threading.Event | None = None,
        fallback: str | None = None,
        held: HeldDecision | None = None,
        operator: bool = False,
    ) -> None:
        self.request_id = arguments.request_id
        self.sequence = command.sequence
        self._group = group
        self._command = command
        self._arguments = arguments
        self._deadline_s = deadline_s
        self._settle_s = settle_s
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._decided_ns: int | None = None
        self._previous = previous
        self._given_up = given_up or threading.Event()
        self._fallback = fallback
        self._held = held
        self._prepared_ns: int | None = None
        self._handed_over: Receipt | None = None
        self._is_operators = operator
        self._lease_over = False
        self._gave_up = False
        self._unusable: ReportFormatError | None = None
        self._is_inherited = False
        self._watch = CommandWatch(group, command, clock)
        self._situation = Situation()
        self._said = {
            "epoch": command.epoch,
            "sequence": command.sequence,
            "request_id": arguments.request_id,
        }

    def give_up(self) -> None:
        """Abort the command if nothing is decided yet. Does not block; safe for threads."""
        self._given_up.set()
        self._group.ring()

    def wake_ranks(self) -> None:
        """Wake the ranks anew: a signal may have come between a word and its wake-up."""
        with suppress(WsmError, ValueError):  # the segment is closed, or cut short: the drive says so
            self._group.wake()

    def drive(self) -> Receipt:
        """Bring the command to its end. Blocks up to its deadline and the settle time.

        Raises
        ------
        WsmError
            As :meth:`wsm.Controller.update`.
        """
        if not self._is_inherited:
            _log.info(log.COMMAND_ISSUED, **self._said, operation=self._command.operation.name)
        try:
            woken = False
            while True:
                look = self._group.look()
                view = look.view
                if view.command[:2] != self._command[:2]:
                    # What is decided in another epoch, or about another command, is not this one's to write.
                    raise EpochEndedError(
                        operation=self._command.operation.name.lower().replace("_", " "),
                        epoch=self._command.epoch,
                        sequence=self._command.sequence,
                        group=self._group.status().sentence(),
                    )
                if view.command.operation.is_decision:  # perhaps by a controller that is dead
                    self._decided_ns = self._decided_ns or self._clock.monotonic_ns()
                if decide.is_over(view):
                    return self._ended(view)
                if self._write_what_follows(view):
                    continue
                if self._handed_over is not None:
                    return self._handed_over
                if self._watch.look(look, woken=woken) and self._decided_ns is None:
                    continue  # there is a reason to give up that was not known
                self._raise_if_stuck(view)
                left_s = LOOK_S if self._decided_ns else self._left_s()
                woken = self._group.wait(look, self._watch.wait_s(left_s))
        finally:
            if self._handed_over is None and traces.wanted():
                self._tell_spans()

    def _tell_spans(self) -> None:
        with suppress(WsmError, ValueError):  # the segment was closed under a command that outlived it
            segment, command = self._group.segment, self._command
            traces.tell_command(
                read_journal(segment), epoch=command.epoch, sequence=command.sequence, group=segment.name
            )

    def complete(self) -> None:
        """Bring a command that a dead controller left open to its end, in this thread, with this role.

        An undecided one is committed if every rank is PREPARED, else aborted. Blocks up to the settle
        time. How it ends is for its own caller, who is dead; it is logged.
        """
        self._is_inherited = True
        self.give_up()
        try:
            self.drive()
        except WsmError as error:
            _log.warning(log.DECISION_COMPLETED, **self._said, error=str(error))
        else:
            _log.warning(log.DECISION_COMPLETED, **self._said)

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
            faulted = [
                rank for rank, word in enumerate(view.statuses) if word.code is StatusCode.DONE_FAULTED
            ]
            if not faulted:
                return self._receipt(view, Outcome.ABORTED, StatusCode.DONE_KEPT)
            status = self._group.status()
            raise self._told(
                errors.not_given_back(
                    request_id=self.request_id,
                    ranks=faulted,
                    group=status.sentence(),
                    advice=" ".join(status.advice),
                )
            )
        raise self._aborted()

    def _was_taken_back(self) -> bool:
        """Whether the command was aborted because who decides it said so."""
        then = self._situation
        said = self._held is not None and self._held.said is False
        return said and not (then.lost or then.hangs or then.failed)

    def _left_s(self) -> float:
        """Seconds that are left until the deadline, or of the lease once all are PREPARED."""
        if self._prepared_ns is None:
            return self._deadline_s - self._elapsed_s(self._began_ns)
        lease_s = self._arguments.lease_s
        return LOOK_S if lease_s is None else lease_s - self._elapsed_s(self._prepared_ns)

    def _hear(self, view: View, due: Due, held: HeldDecision) -> None:
        """Tell who decides that all are PREPARED; one whose lease holds the decision goes on without this."""
        if not due.agree or not decide.all_prepared(view):
            return
        self._prepared_ns = self._clock.monotonic_ns()
        receipt = self._receipt(view, Outcome.PREPARED, StatusCode.PREPARED)
        if self._arguments.leased and held.said is None:
            self._handed_over = receipt
        held.tell(receipt)

    def _write_what_follows(self, view: View) -> bool:
        """Write the decision, or the committed version, if it is time; return whether one was written."""
        if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
            return complete_commit(self._group, view, self._arguments)
        if self._is_inherited and decide.is_held(view, leased=self._arguments.leased):
            raise decision_held(view, self._arguments)
        give_up, verdict = False, None if self._held is None else self._held.said
        if self._decided_ns is None:
            self._gave_up = self._given_up.is_set() or verdict is False
            heard_after_s = 0.0  # since the caller of a prepared command said its commit
            if self._held is not None and self._prepared_ns is not None and self._held.said:
                heard_after_s = self._elapsed_s(self._held.said_ns or self._clock.monotonic_ns())
            late = self._left_s() + heard_after_s < 0
            give_up = bool(self._watch.lost or self._watch.hangs) or self._gave_up or late
            self._lease_over = late and self._prepared_ns is not None
            if self._lease_over and verdict:
                verdict = None  # it was said too late, as by a process that was stopped meanwhile
        due = due_decision(self._group, view, give_up=give_up, verdict=verdict)
        self._unusable = due.unusable or self._unusable
        if due.word is None:
            if self._held is not None and self._prepared_ns is None:
                self._hear(view, due, self._held)
            return False
        if due.word.is_abort:
            self._situation = self._seen(view)
        self._decided_ns = self._clock.monotonic_ns()
        return write_decision(self._group, view, due._replace(operator=self._is_operators))

    def _seen(self, view: View) -> Situation:
        """Keep what there is to be said of the ranks now, for the error that may come of it."""
        watch = self._watch
        late, doing = outcome.seen(self._group)
        return Situation(
            late=late,
            doing=doing,
            lost=tuple(watch.lost),
            broken=outcome.broken(view, watch.lost),
            hangs=tuple(watch.hangs),
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
        # A caller that takes its command back wants it settled; one whose command failed, who failed.
        patient = self._gave_up and not self._is_inherited
        if not self._watch.is_hopeless(view, waited_s=waited, settle_s=self._settle_s, patient=patient):
            return
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
            raise self._aborted()
        raise UnsettledError(
            request_id=self._arguments.request_id,
            decision=view.command.operation.name,
            late=outcome.seen(self._group)[0],
            waited_s=waited,
        )

    def _aborted(self) -> Exception:
        if self._unusable is not None:
            _log.error(log.COMMAND_FAILED, **self._said, error=str(self._unusable))
            return self._unusable
        then, operation = self._situation, self._command.operation.name.lower().replace("_", " ")
        if self._lease_over and not (then.lost or then.hangs or then.failed or self._gave_up):
            error: WsmError = errors.lease_over(
                request_id=self.request_id,
                operation=operation,
                lease_s=self._arguments.lease_s or 0.0,
                group=self._group.status().sentence(),
            )
        else:
            error = outcome.aborted(
                self._group, self._command, request_id=self.request_id, operation=operation, then=then
            )
        return self._told(error)

    def _told(self, error: WsmError) -> WsmError:
        """Log and journal the error that the command ends with, and return it."""
        if outcome.found_held(error):
            told, ended = f"nothing to do: {error.context['cause']}", Outcome.ALREADY_SERVED.value
            _log.info(log.COMMAND_FINISHED, **self._said, outcome=told)
        else:
            told, ended = str(error), "refused" if isinstance(error, RefusedError) else "failed"
            _log.error(log.COMMAND_FAILED, **self._said, error=told)
        self._group.journal.note(
            kinds.COMMAND_OVER, self._command, outcome=told, ended=ended, error=error.code
        )
        return error

    def _receipt(self, view: View, how: Outcome, code: StatusCode) -> Receipt:
        found = outcome.reports(self._group, self._command, code) or []
        told = outcome.told_by(found)
        missing = decide.missing_anywhere(view)
        version = None if Tag.WEIGHTS in missing else self._group.known_version(view)
        aborted_outside = how is Outcome.ABORTED and self._command.decider is Decider.OUTSIDE
        if how is Outcome.PREPARED:
            version = commanded_version(self._group, view, self._arguments)
        # A hot command's version is staged until the decision, which every rank has served until then.
        staged_ns = (self._decided_ns or self._began_ns) if self._command.operation.is_hot else self._began_ns
        receipt = Receipt(
            request_id=self._arguments.request_id,
            outcome=how,
            epoch=self._command.epoch,
            sequence=self._command.sequence,
            version=version,
            previous_version=self._previous,
            manifest_digest=told.manifest_digest,
            loaded=how is Outcome.UPDATED and (not found or told.tensors > 0),
            seconds=self._elapsed_s(self._began_ns),
            pause_s=told.pause_s,
            ranks=tuple(found),
            hot=self._command.operation.is_hot,
            staging_s=(staged_ns - self._began_ns) / 1e9,
            fallback=self._fallback,
            tags=named(self._arguments.tags),
            missing=named(missing),
            partial=self._arguments.partial,
            verified=told.verified,
            restorable=told.restorable,
            serving=not missing and not view.committed.held,
            hold=self._group.hold(view),
            staged_bytes=told.bytes if how is Outcome.PREPARED else 0,
            lease_s=self._arguments.lease_s if how is Outcome.PREPARED else None,
            warning=_MAY_BE_COMMITTED if aborted_outside else None,
        )
        if how is Outcome.PREPARED:
            return receipt
        _log.info(log.COMMAND_FINISHED, **self._said, outcome=how.value, seconds=receipt.seconds)
        measured: dict[str, Any] = {"pause_s": receipt.pause_s}
        if receipt.loaded:
            measured["bytes"] = told.bytes
        if receipt.hot:
            measured["staging_s"] = receipt.staging_s
        self._group.journal.note(
            kinds.COMMAND_OVER, self._command, outcome=receipt.sentence(), ended=how.value, **measured
        )
        return receipt

    def _elapsed_s(self, since_ns: int) -> float:
        return (self._clock.monotonic_ns() - since_ns) / 1e9


class Pending:
    """A command under way, for the caller. Safe for threads. In a coroutine, await it for its receipt.

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

    @classmethod
    def driven(
        cls, transaction: Transaction, ending: ExitStack, drive: Callable[[], Receipt], *, here: bool = False
    ) -> Pending:
        """Drive a command that was written in a thread of its own, which holds the controller role as long.

        So a caller that computes between calls, or stops waiting, leaves no rank undecided. Where the kernel
        grants no thread, the caller drives: this blocks then until the request is over.

        Parameters
        ----------
        transaction : Transaction
            The command.
        ending : ExitStack
            Closed in the thread when the request is over in any way; gives the controller role back.
        drive : callable
            Brings the request to its end, in the thread. If it is called again, it goes on where it was.
        here : bool
            For a caller that waits for the end anyway: it drives itself, which costs no thread, and this
            blocks until the request is over. Not in the main thread: a signal handler there may run for
            minutes, raise, or give a command itself, and the ranks must not wait for that.
        """
        pending = cls(transaction.request_id, Future(), transaction.give_up)

        def run() -> None:
            try:
                with ending:
                    receipt = drive()
            except BaseException as error:  # noqa: BLE001 - the caller's thread gets it, whatever it is
                pending._future.set_exception(error)
            else:
                pending._future.set_result(receipt)

        def go_on() -> None:
            transaction.wake_ranks()
            run()

        name = f"wsm-transaction-{transaction.sequence}"
        if not here or threading.current_thread() is threading.main_thread():
            _in_thread(run, name)
            return pending
        try:
            receipt = drive()
        except WsmError:
            ending.close()
            raise
        except BaseException:
            _in_thread(go_on, name)
            raise
        ending.close()
        return cls.ended(receipt)

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt. Blocks; the command has a deadline of its own.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout_s` seconds; it goes on.
        WsmError
            As :meth:`wsm.Controller.clear` and :meth:`wsm.Controller.update`.
        """
        try:
            return result_of(self._future, timeout_s)
        except TimeoutError:
            if self._future.done():  # it ended just now, or with an error that is a timeout itself
                return self._future.result()
            raise TimeoutError(f"{self.request_id} is not over after {timeout_s} s; it goes on") from None

    def give_up(self) -> None:
        """Abort the command if nothing is decided yet; a decision that was made is final. Does not block."""
        self._give_up()

    @property
    def over(self) -> bool:
        """Whether the receipt, or the error, is there."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[Pending], object]) -> None:
        """Call `callback` with this object once the command is over, now if it is; from any thread.

        What it raises is logged by :mod:`concurrent.futures`, and goes nowhere else.
        """
        self._future.add_done_callback(lambda _future: callback(self))

    def __await__(self) -> Generator[None, None, Receipt]:
        """Wait for the receipt without blocking the event loop; raises as :meth:`result` does.

        To cancel the task that waits leaves the command as it is, under its request id; :meth:`give_up`
        aborts it.
        """
        import asyncio  # noqa: PLC0415 - 30 ms of every process that imports wsm, for those that use it

        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


def _in_thread(run: Callable[[], None], name: str) -> None:
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:  # the command is written already, and must come to its end
        run()
