"""One rank inside FastDeploy's loop: it polls until rank 0 says that the entry is over.

Rank 0 alone reads the deciding weights word, gives commands and answers, by the table of
:mod:`wsm.states.engine_words`; all others do their part of commands and leave on rank 0's word in the
segment. FastDeploy's own barrier stands before each entry, so all ranks count the same entries.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from wsm import log
from wsm.clock import SystemClock
from wsm.controller import Controller, Pending
from wsm.controller.engine_bridge import EngineWishes, held_by
from wsm.controller.errors import UnsettledError
from wsm.errors import GroupError, WsmError
from wsm.fastdeploy._part_words import PartWord
from wsm.fastdeploy.errors import as_fastdeploys, cause_of
from wsm.receipt import Receipt
from wsm.signals.errors import RoleBusyError
from wsm.signals.liveness import Liveness
from wsm.signals.owner_settings import owner_adds, owner_awaits, settings_in
from wsm.signals.ownership import OWNER_BYTE
from wsm.signals.segment import Segment
from wsm.states import engine_words as contract
from wsm.states.engine_words import Entry, FailedWish, Held
from wsm.states.errors import CommandOpenError
from wsm.states.vocabulary import KVState, Tag, WeightState
from wsm.status.facts import named
from wsm.worker import HOLD, Worker

#: Seconds that a turn waits at most where there is nothing to do.
TURN_S = 0.001

#: Seconds between two looks whether a sleeping loop is to be woken; the loop itself looks every second.
WAKE_LOOK_S = 0.2

#: Seconds after which every stream of FastDeploy's has looked at the word: they look every 10 s.
STREAMS_LOOK_S = 11.0

#: Seconds after which ``wsm status`` names ranks that have not come in.
MISSED_S = 1.0

#: Bytes of a failure, and of all that is said of two entries; the owner's settings take 16 KiB in all.
MAX_FAILURE, MAX_SAID = 1000, 14_000


class Brought(NamedTuple):
    """What a load has brought to one rank.

    Parameters
    ----------
    sync_s, apply_s : float or None
        Seconds that bytes took to come, and to be applied; None where that is one.
    tensors, auxiliary : int
        How many tensors came, and how many of them were for auxiliary models, too.
    """

    sync_s: float = 0.0
    apply_s: float | None = None
    tensors: int = 0
    auxiliary: int = 0

    @classmethod
    def said(cls, facts: Mapping[str, Any]) -> Brought:
        """Return what the facts of a command on one rank say of its load."""
        apply_s = facts.get("apply_s")
        return cls(
            round(float(facts.get("sync_s") or 0.0), 4),  # short: all ranks are told those of all
            None if apply_s is None else round(float(apply_s), 4),
            int(facts.get("tensors") or 0),
            int(facts.get("auxiliary_tensors") or 0),
        )


class Came(NamedTuple):
    """What became of the command of a direct call, or of the load at start.

    Parameters
    ----------
    failure : str
        Why it has failed; empty if it has not.
    brought : sequence
        By rank, the fields of :class:`Brought`.
    cause : str
        The code of what has failed.
    """

    failure: str = ""
    brought: Sequence[Sequence[Any]] = ()
    cause: str = ""

    @classmethod
    def to(cls, error: WsmError) -> Came:
        """Return what the other ranks hear of a command that failed."""
        return cls(_bounded(error), cause=cause_of(error))


class Said(NamedTuple):
    """What rank 0 says of an entry.

    Parameters
    ----------
    number : int
        Which; the load at start is 0.
    word : int
        What the deciding weights word says, or is asked.
    after : int
        The last command of the entry so far.
    over : bool
        Whether all ranks leave once that command is over for them.
    came, before : Came
        What became of it, and of the entry before it: a rank that is still leaving that one reads it here.
    command : int
        The number of the command that every rank has called for; 0 before it is written.
    """

    number: int
    word: int
    after: int
    over: bool
    came: Came = Came()
    before: Came = Came()
    command: int = 0


class Entries:
    """The entries of one rank that does not decide.

    Parameters
    ----------
    worker : Worker
        This rank of the group.
    segment : Segment
        The group's, attached.
    word : PartWord or None
        The weights word that this rank keeps equal to the deciding one; None: another rank of its part does,
        or it is that one.

    Attributes
    ----------
    number : int
        How often FastDeploy's loop came in.
    """

    def __init__(self, worker: Worker, segment: Segment, word: PartWord | None) -> None:
        self.number = 0
        self._worker = worker
        self._segment = segment
        self._places = Liveness(segment)
        self._word = word
        self._brought: Sequence[Sequence[Any]] = ()
        self._alike = (
            0,
            contract.NORMAL,
        )  # the entry in which both words were alike, and what they said
        self._left = contract.NORMAL  # what the deciding word said at the last look
        self._asleep = False  # whether FastDeploy's loop comes in next, before it turns again
        self._log = log.logger("fastdeploy", rank=worker.rank)

    def close(self) -> None:
        """Let go of what runs beside FastDeploy's loop; nothing on this rank."""

    def boot(self, attach_s: float) -> Came:  # noqa: ARG002 - rank 0 waits that long for this one
        """Take part in the load at start; return what became of it. Blocks."""
        while not self._is_over():
            self._turn()
            if self._segment.lock_file.holder(OWNER_BYTE) is None:
                return Came("rank 0 has ended")
        return self._came()

    def stay(self, entry: Entry) -> None:
        """Take part in an entry until rank 0 says that it is over. Blocks.

        Parameters
        ----------
        entry : Entry
            How FastDeploy's loop came in; rank 0 decides by it.
        """
        self.number += 1
        self._asleep = contract.sleeps_behind(self._live(entry))

    def together(
        self,
        begin: Callable[[Controller], Pending | None],  # noqa: ARG002 - rank 0 begins it
        *,
        bound_s: float | None = None,  # noqa: ARG002 - and waits for the others
    ) -> None:
        """Take part in a command that every rank calls for at once. Blocks.

        Parameters
        ----------
        begin : callable
            Begins it, on rank 0; returns None where there is nothing to do.
        bound_s : float or None
            Seconds that rank 0 waits for ranks to come, and for those that are still inside of a command that
            failed; None: until they do.

        Raises
        ------
        GroupError (``call-failed``)
            If it failed; rank 0 raises why.
        """
        self.number += 1
        while not self._is_over():
            self._turn()
        came = self._came()
        if came.failure:
            rank, why = self._worker.rank, came.failure
            error = GroupError(
                f"what the ranks called for together failed, as rank 0 says to rank {rank}: {why}",
                code="call-failed",
                rank=rank,
                why=why,
            )
            raise as_fastdeploys(error, came.cause)
        self._brought = came.brought

    def commands(self, sequence: int) -> bool:
        """Whether that command is the one that every rank has called for, in this entry."""
        said = self._said()
        return (said.number, said.command) == (self.number, sequence)

    def rests(self, *, asleep: bool) -> None:
        """Take no step between two turns of FastDeploy's loop while a control request has put it to sleep."""
        self._asleep = asleep

    @property
    def brought(self) -> Brought:
        """What the last command that every rank called for has brought to this one."""
        rank = self._worker.rank
        return Brought(*self._brought[rank]) if rank < len(self._brought) else Brought()

    def between_turns(self, in_flight: Callable[[], int]) -> bool:  # noqa: ARG002 - rank 0 looks at them
        """Do what other processes' commands ask, between two turns of FastDeploy's loop. Blocks.

        Returns
        -------
        bool
            Whether the turn is a step; where the loop has slept, it comes in for an update first.
        """
        if self._asleep:
            return False
        while self._worker.poll() is HOLD:
            self._require_all_here()
            self._worker.beat()
        return True

    def _live(self, _entry: Entry) -> int:
        """Take part until rank 0 says that all leave; return what the deciding word says then."""
        while not self._is_over():
            self._turn()
        return self._left

    def _is_over(self) -> bool:
        said = self._said()
        if said.number != self.number:
            return said.number > self.number  # then the entry was over before this rank came
        self._show(said)
        self._left = said.word
        return said.over and self._worker.finished >= said.after

    def _show(self, said: Said) -> None:
        """Let this part's word follow the deciding one."""
        own = None if self._word is None else self._word.read()
        if self._word is not None and own is not None:
            shown = contract.mirrored(said.word, own, together=self._alike == (said.number, own))
            if shown == said.word:
                self._alike = (said.number, shown)
            if shown != own:
                self._word.change(own, shown)

    def _turn(self) -> None:
        """Do what the group asks of this rank now, and show that it is here.

        Raises
        ------
        GroupError (``rank-gone``)
            If a rank that was here is gone: none of the others would leave the entry.
        """
        if self.number:
            self._require_all_here()
        if self._worker.poll() is not HOLD:
            self._worker.wait(TURN_S)
        self._worker.beat()

    def gone(self) -> list[int]:
        """Return the other ranks that have no process."""
        own, ranks = self._worker.rank, range(self._segment.world_size)
        return [rank for rank in ranks if rank != own and not self._places.has_place(rank)]

    def _require_all_here(self) -> None:
        own, gone, group = self._worker.rank, self.gone(), self._segment.name
        if gone:
            raise GroupError(
                f"{named(gone)} of group {group!r} ended while rank {own} was in entry {self.number} of "
                "FastDeploy's loop, which all ranks leave together: this process ends; start the job again",
                code="rank-gone",
                rank=own,
                gone=tuple(gone),
                group=group,
                entry=self.number,
            )

    def _said(self) -> Said:
        said = settings_in(self._segment.settings).entry
        if not said:
            return Said(-1, contract.NORMAL, 0, over=False)
        return Said(**{**said, "came": Came(*said["came"]), "before": Came(*said["before"])})

    def _came(self) -> Came:
        """Return what became of the entry that this rank leaves; rank 0 is one ahead at most."""
        said = self._said()
        return said.came if said.number == self.number else said.before


class Deciding(Entries):
    """The entries of rank 0, which decides.

    Parameters
    ----------
    worker, segment
        As for :class:`Entries`; this process owns the segment.
    word : PartWord
        The deciding word.
    controller : Controller
        Of the group.
    deadline_s : float
        Seconds for one command, and for all ranks to come.

    Attributes
    ----------
    seen : callable
        ``seen(rank)``: the second, of the epoch, in which FastDeploy's loop of a rank was last seen at work;
        None where nothing says it.
    """

    def __init__(
        self,
        worker: Worker,
        segment: Segment,
        word: PartWord,
        controller: Controller,
        *,
        deadline_s: float,
    ) -> None:
        super().__init__(worker, segment, None)
        self.seen: Callable[[int], int | None] = lambda _rank: None
        self._deciding = word
        self._controller = controller
        self._deadline_s = deadline_s
        self._shown = contract.NORMAL  # what the word said last, for an engine that has made none
        self._adopted = False  # whether what FastDeploy built itself counts as there
        self._outcome: tuple[int, Came] = (0, Came())  # of the entry of that number
        self._before = Came()
        self._commanded = 0  # the command that every rank has called for
        self._polls = False  # whether FastDeploy's loop has the second line
        self._wishes = EngineWishes(controller, self._drive, deadline_s, SystemClock(), self._log)
        self._waking: threading.Thread | None = None
        self._stopping = threading.Event()

    def boot(self, attach_s: float) -> Came:
        """Load the weights on every rank; return what became of it. Blocks.

        Parameters
        ----------
        attach_s : float
            Seconds for the other ranks to join.
        """
        came, late_at = Came(), time.monotonic() + attach_s
        while True:
            try:
                self._run(
                    self._controller.begin_update(
                        tags={Tag.WEIGHTS}, deadline_s=self._deadline_s, request_id="fastdeploy-boot"
                    )
                )
            except CommandOpenError as error:  # the other ranks are still coming
                if time.monotonic() < late_at:
                    self._turn()
                    continue
                came = Came.to(error)
            except WsmError as error:
                came = Came.to(error)
                with suppress(GroupError):  # a rank is gone: the command never comes to its end
                    self._until_at_rest()
            self._say(contract.NORMAL, over=True, came=came)
            return came

    def stay(self, entry: Entry) -> None:
        """As :meth:`Entries.stay`; behind it a sleeping loop is woken where a trainer commands the group."""
        self.close()
        super().stay(entry)
        if self._asleep and self._polls:
            self._waking = threading.Thread(target=self._wake, name="wsm-fastdeploy-waking", daemon=True)
            self._waking.start()

    def close(self) -> None:
        """Wake the loop no more. Idempotent."""
        if self._waking is not None:
            self._stopping.set()
            self._waking.join()
            self._waking = None
            self._stopping.clear()

    def _wake(self) -> None:
        """Wait for a command of another process, and let the word wake FastDeploy's sleeping loop for it."""
        told = ""
        while not self._stopping.wait(WAKE_LOOK_S):
            try:
                if not self._controller.status().over:
                    self._wishes.woken = self._deciding.change(contract.CLEARED, contract.UPDATING)
                    return
            except WsmError as error:  # noqa: PERF203 - FastDeploy's loop sleeps on if this thread ends
                if str(error) != told:
                    told = str(error)
                    self._log.error(log.COMMAND_FAILED, asked="waking the loop", error=told)

    def _live(self, entry: Entry) -> int:
        """Decide what the entry is for, and stay until it is over; return what all leave on.

        That is what was answered, if anything was: an engine may ask for the next thing by then, for which
        the loop comes in anew.
        """
        self._shown = entry.asked
        self._say(entry.asked, over=False)
        self._await_all()
        self._adopt()
        if entry.asked == contract.CLEARED:
            self._follow()
        while not contract.leaves(entry, word := self._now()):
            if word in contract.ASKS:
                answer = self._obey(entry, word)
                if answer is not None and contract.leaves(entry, answer):
                    word = answer
                    break
            else:
                self._turn()
                self._follow()
        self._wishes.failed = FailedWish()
        self._say(word, over=True)
        return word

    def _follow(self) -> None:
        """Let a word that says CLEARED follow a group that a command of another process has brought back."""
        if self._worker.kv is KVState.NORMAL and self._worker.weights is WeightState.NORMAL:
            status = self._controller.status()
            if status.over and held_by(status) is Held.WHOLE:
                self._back_to_normal(contract.CLEARED)

    def _back_to_normal(self, shown: int) -> None:
        """Let a word of wsm's own, which says `shown`, go to NORMAL; what an engine asks meanwhile stays."""
        for before, after in contract.BACK_TO_NORMAL:
            if shown == before and self._deciding.change(before, after):
                shown = after

    def together(
        self, begin: Callable[[Controller], Pending | None], *, bound_s: float | None = None
    ) -> None:
        """Begin a command that every rank calls for at once, and drive it. Blocks.

        Raises
        ------
        GroupError (``ranks-late``)
            If a rank does not come within `bound_s` seconds.
        WsmError
            What became of it; on the other ranks ``call-failed``.
        """
        self.number += 1
        self._say(self._now(), over=False)
        came = Came("rank 0 did not come to its end")  # unless it says otherwise below
        try:
            self._await_all(bound_s)
            if bound_s is not None:
                self._until_at_rest(bound_s)  # of a command that rank 0 has left before its end
            pending = begin(self._controller)
            if pending is not None:  # said before this rank does its part, so before any rank changes a thing
                self._commanded = pending.written() or 0
                self._say(self._now(), over=False)
            receipt = None
            if pending is not None:
                try:
                    receipt = self._run(pending)
                except UnsettledError as error:  # decided; what came late may have come by then
                    self._until_at_rest(bound_s)
                    if error.context["decision"] != "COMMIT" or not self._controller.status().over:
                        raise
            self._brought = (
                ()
                if receipt is None
                else tuple(Brought.said({**rank.facts, "tensors": rank.tensors}) for rank in receipt.ranks)
            )
            came = Came(brought=self._brought)
        except WsmError as error:
            came = Came.to(error)
            self._until_at_rest(bound_s)
            raise as_fastdeploys(error) from error
        finally:
            self._commanded = 0
            self._say(self._now(), over=True, came=came)

    def between_turns(self, in_flight: Callable[[], int]) -> bool:
        """As :meth:`Entries.between_turns`; the word shows it to the engine as a clear and an update.

        Where requests ran, the word stays below 0 until every stream of the engine has looked at it.
        """
        self._polls = True
        if self._asleep:
            return False
        self._adopt()
        since, ran, shown = 0.0, 0, contract.NORMAL  # what wsm itself has made of the word
        while True:
            turn = self._worker.poll()
            if turn is not HOLD:
                if not ran or in_flight() or time.monotonic() > since + STREAMS_LOOK_S:
                    break
                self._worker.wait(TURN_S)
            else:
                if not since:
                    since, ran = time.monotonic(), in_flight()
                if shown == contract.NORMAL and self._deciding.change(contract.NORMAL, contract.CLEARING):
                    shown = contract.CLEARING
                self._require_all_here()
                shown = self._rest(shown)
            self._worker.beat()
        self._wishes.failed = FailedWish()
        self._back_to_normal(shown)
        return True

    def _rest(self, shown: int) -> int:
        """Show a group that rests without serving, and obey an engine that asks for its weights.

        `shown` is what wsm itself has made of the word; return what it has now.
        """
        status = self._controller.status()
        if not status.over or status.engine_state is WeightState.NORMAL:
            return shown
        if shown == contract.CLEARING and status.engine_state is WeightState.CLEARED:
            shown = contract.CLEARED if self._deciding.change(shown, contract.CLEARED) else shown
        word = self._now()
        if word in contract.ASKS and word != shown and status.hold is None:
            answer = self._obey(Entry(word, block=True), word, between_turns=True)
            shown = shown if answer is None else answer
        return shown

    def _now(self) -> int:
        """Return what the deciding word says."""
        word = self._deciding.read()
        return self._shown if word is None else word

    def _obey(self, entry: Entry, word: int, *, between_turns: bool = False) -> int | None:
        """Do what the word asks, and return the answer; None: what cannot be done now is for another look.

        Nothing is told to the other ranks between turns: one of them may still be leaving the entry before.
        """
        self._turn()
        if not between_turns and self._left != word:
            self._say(word, over=False)
        answer = self._wishes.obey(self._now, word, sleeps=entry.sleeps)
        if answer is None or answer == word:
            return None
        self._shown = answer
        answered = self._deciding.change(word, answer)
        if not between_turns:
            self._say(answer, over=False)
        self._log.info(log.ENGINE_WORD_ANSWERED, answer=WeightState(answer).name, answered=answered)
        return answer

    def _drive(self, pending: Pending) -> None:
        """Do this rank's part of the command of a wish, and of the way out of one that failed."""
        try:
            self._run(pending)
        except WsmError:
            self._until_at_rest()
            raise

    def _adopt(self) -> None:
        """Let the KV cache and the graphs count as there that FastDeploy built after the load at start."""
        while not self._adopted:
            try:
                self._run(
                    self._controller.begin_update(
                        tags={Tag.KV_CACHE}, deadline_s=self._deadline_s, request_id="fastdeploy-found"
                    )
                )
            except (RoleBusyError, CommandOpenError):
                self._turn()
                continue
            except WsmError as error:
                self._log.error(log.COMMAND_FAILED, asked="KV cache", error=str(error))
                self._until_at_rest()
            self._adopted = True

    def _await_all(self, bound_s: float | None = None) -> None:
        """Wait until every rank has come in; name those that have not, at each deadline.

        Raises
        ------
        GroupError (``ranks-late``)
            After `bound_s` seconds, unless that is None.
        """
        before, late_at, began = self._heartbeats(), 0.0, time.monotonic()
        told_at, told = began + MISSED_S, False
        while True:
            now = self._heartbeats()
            missing = [rank for rank, beats in now.items() if beats == before[rank]]
            if not missing:
                if told:
                    owner_awaits(self._segment, (), where="")
                return
            if bound_s is not None and time.monotonic() > began + bound_s:
                group = self._segment.name
                raise GroupError(
                    f"{named(missing)} of group {group!r} did not come to FastDeploy's control request "
                    f"within {bound_s:g} s: nothing was begun; see where that rank is, and ask again",
                    code="ranks-late",
                    late=tuple(missing),
                    group=group,
                    waited_s=bound_s,
                )
            if time.monotonic() > told_at:
                told_at, told = time.monotonic() + MISSED_S, True
                where = f"entry {self.number} of FastDeploy's loop"
                owner_awaits(self._segment, missing, where=where, seen=self._last_seen(missing))
            if not late_at or time.monotonic() > late_at:
                if late_at:
                    self._log.error(
                        log.DEADLINE_EXPIRED,
                        wait="entry of FastDeploy's loop",
                        entry=self.number,
                        waiting_for=named(missing),
                    )
                late_at = time.monotonic() + self._deadline_s
            self._turn()

    def _last_seen(self, ranks: Sequence[int]) -> str:
        """Say when FastDeploy's loop of these ranks wrote its heartbeat last."""
        seen = {rank: self.seen(rank) for rank in ranks}
        at = {
            rank: time.strftime("%H:%M:%S", time.localtime(second)) for rank, second in seen.items() if second
        }
        return ", ".join(
            f"the loop of rank {rank} was last seen at work at {text}" for rank, text in at.items()
        )

    def _heartbeats(self) -> dict[int, int]:
        """Return how often each other rank has shown that it is here."""
        own = self._worker.rank
        return {rank.rank: rank.heartbeat for rank in self._controller.status().ranks if rank.rank != own}

    def _run(self, pending: Pending) -> Receipt:
        """Do this rank's part of a command; return its receipt, or raise what became of it."""
        while not pending.over:
            self._turn()
        return pending.result()

    def _until_at_rest(self, bound_s: float | None = None) -> None:
        """Do this rank's part of the way out of a command that failed; for `bound_s` seconds at most."""
        began = time.monotonic()
        while not self._controller.status().over:
            if bound_s is not None and time.monotonic() > began + bound_s:
                return
            self._require_all_here()
            self._turn()

    def _say(self, word: int, *, over: bool, came: Came | None = None) -> None:
        """Tell the other ranks what the word says, whether they leave, and what became of the entry."""
        number, last = self._outcome
        if number != self.number:
            self._before, last = last, Came()
        last = last if came is None else came
        self._outcome = (self.number, last)
        said = Said(self.number, word, self._worker.finished, over=over, came=last, before=self._before)
        said = said._replace(command=self._commanded)
        if len(json.dumps(said._asdict())) > MAX_SAID:  # better no seconds than a rank that is told nothing
            came, before = (each._replace(brought=()) for each in (said.came, said.before))
            said = said._replace(came=came, before=before)
        owner_adds(self._segment, entry=said._asdict())
        self._left = word
        self._show(said)


def _bounded(error: WsmError) -> str:
    """Return what an error says, or its beginning: it has to fit twice into what the owner says."""
    text = kept = str(error)
    while (size := len(json.dumps(kept))) > MAX_FAILURE:
        kept = kept[: len(kept) * MAX_FAILURE // size]
    return text if kept == text else f"{kept}... (rank 0 has the rest)"
