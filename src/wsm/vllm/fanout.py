"""The server's side of an update: it asks all ranks, makes a view of their answers, and walks the table.

Theory of operation
-------------------
What follows is said by :func:`wsm.states.group.advance`; here it is told to the ranks, and to the engine. A
decision is recorded here before the first rank is told.

An update is one in place. All ranks have voted, and alike, before the engine is paused and anything is
loaded; all are PREPARED before COMMIT is decided. One that failed behind the first byte owes the group the
version before, which is loaded under the same pause.

**Answers are believed by their token alone** (:class:`EngineRanks`). vLLM gives each answer to the next
question, so one that belongs to another shows that all later ones do: a fault that only a restart ends.
A question whose answer does not come in time stays asked: nothing else is asked before it is answered, and
the server serves nothing meanwhile. The deadline is counted here; one of vLLM's own would leave the late
answer to the next question.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from wsm.errors import GroupError, described
from wsm.labels import unnamed_version, version_id
from wsm.signals.presence import ProcessIdentity
from wsm.states import decide
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, May, Opens, advance
from wsm.states.view import RankAnswer, View, all_stopped, any_touched, view_of_answers
from wsm.states.vocabulary import OnFailure
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusWord
from wsm.vllm.engine import FINISH
from wsm.vllm.versions import EngineTerms, VersionPlace

#: Seconds between two looks at ranks that read: a tenth of what they have taken so far, in these bounds.
_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.25


#: Why answers are not there, or not believed, and what to do.
_LOST = {
    "unanswered": "the ranks have not answered in time; nothing is served until they answer and an update "
    "ends well; if they never do, restart vLLM",
    "engine-lost": "vLLM could not ask its workers: one is dead, or an extension has raised, and then later "
    "answers are those of other questions; restart vLLM",
    "out-of-step": "vLLM's answers are out of step: an exception of another extension has left one behind, "
    "for good; restart vLLM",
}

_LATE = "not all ranks had read and verified it, or its trainer did not go on, or all was not paused, in"

#: Asks every rank, and returns their answers in the order of ranks.
Call: TypeAlias = Callable[[dict[str, Any]], Awaitable[list[Any]]]
Pause: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
#: Whether what all ranks have voted for may be loaded; if not, it has said why in the end that it is given.
MayLoad: TypeAlias = Callable[["UpdateEnd"], Awaitable[bool]]


@dataclass
class SentVerb:
    """A verb of vLLM's worker by which a trainer pushes. `version`: what the last one calls it.

    `done`: set once all ranks have done it; of the last, and of one that fails, the update's end tells.
    """

    verb: str
    given: list[Any]
    version: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class UpdateEnd:
    """How an update has ended.

    `version`: what the last verb of a push has called it. `committed`: whether it serves. `restored`: whether
    the version before was loaded again. `errors`: of each rank that said one. `fingerprints`: of each rank's
    parameters, as they were loaded; None where vLLM's checksums do not see them all. `ms`: since the
    beginning, when all had voted, all was paused, all was over.
    """

    version: str | None = None
    committed: bool = False
    restored: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    votes: list[dict[str, Any]] = field(default_factory=list)
    fingerprints: list[str | None] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)


class EngineRanks:
    """The ranks of one engine, as its server knows them. One task at a time.

    `answer_s`: in which every question is answered but that of a reload, which has the update's deadline; a
    step may be long. `version`, `digest`: of what was committed last. `place`: where that is; None: it is
    what vLLM was started with. `fault`: why the ranks cannot be asked; None: they can. `answers`: what each
    said last. `command`: what was given last.
    """

    def __init__(self, call: Call, ranks: int, server: str, *, answer_s: float = 60.0) -> None:
        self.ranks = ranks
        self.version: str | None = None
        self.digest: str | None = None
        self.place: VersionPlace | None = None
        self.fault: GroupError | None = None
        self.answers: list[dict[str, Any]] = []
        self.digests: dict[str, str] = {}  # of the versions that were committed
        self._call, self._server, self._answer_s = call, server, answer_s
        self._serial = itertools.count(1)
        self._late: asyncio.Task[list[Any]] | None = None
        self._late_token = ""
        self.command: CommandWord | None = None
        self._committed: CommittedWord | None = None
        self._place: VersionPlace | None = None
        self._restores = False
        self._is_settled = True  # whether each command that was given has been seen to its end

    async def hello(self, place: VersionPlace, terms: EngineTerms) -> None:
        """Say hello to all ranks, and wait until each has read what vLLM was started with, or cannot.

        `terms`: what they are told once.

        Raises
        ------
        GroupError (``unanswered``, ``out-of-step``, ``engine-lost``)
            If they do not answer, or not this question; the last two are final.
        """
        while not (self.answers and all(answer["first_is_read"] for answer in self.answers)):
            about = {"place": msgspec.to_builtins(place), "terms": msgspec.to_builtins(terms)}
            await self._ask(self._answer_s, do="hello", **about)
            await asyncio.sleep(_LOOK_S)
        served = [answer["served"] for answer in self.answers if answer.get("served")]
        self.version = served[0]["version"] if served else place.version
        self._committed = CommittedWord(0, version_id(self.version))
        self.digest = self._digest_of("served")
        if self.digest is not None:
            self.digests[self.version] = self.digest
        await self.look()

    async def look(self) -> None:
        """Ask all ranks how far they are, and change nothing.

        Raises
        ------
        GroupError (``unanswered``, ``out-of-step``, ``engine-lost``)
            If they do not answer, or not this question; the last two are final.
        """
        await self._tell(self._answer_s, self.view(), load=False)

    async def connect(self, verb: str, given: list[Any], limit_s: float) -> None:
        """Have all ranks do a verb of vLLM's worker by which a trainer connects, or leaves.

        Raises
        ------
        GroupError
            If one fails in it, with its code; or as :meth:`look`.
        """
        await self._ask(limit_s, do="connect", verb=verb, given=given)

    def serving(self) -> bool:
        """Whether all ranks serve the same whole version, as far as they have answered."""
        view = self.view()
        holds = all(resident.serving for resident in decide.resident_on_each(view))
        settled = self._is_settled and decide.is_over(view) and not view.silent
        return self.fault is None and settled and holds

    @property
    def is_restorable(self) -> bool:
        """Whether every rank has the files of what serves open."""
        return bool(self.answers) and all(answer.get("served") for answer in self.answers)

    async def update(
        self,
        place: VersionPlace,
        may_load: MayLoad,
        pause: Pause,
        end: UpdateEnd,
        *,
        deadline_s: float,
        pushes: asyncio.Queue[SentVerb] | None = None,
    ) -> None:
        """Bring a version to all ranks, or leave them with the one before. Does not resume the engine.

        Parameters
        ----------
        place : VersionPlace
            The version.
        may_load : callable
            Is asked once all ranks have voted for it.
        pause : callable
            Lets no step begin, and forgets what the old weights have computed. Called once all ranks have
            voted; for a push, before anything has come.
        end : UpdateEnd
            Filled in, as far as the update comes.
        deadline_s : float
            Seconds for reading, verifying and loading; as many again for bringing back the version before.
        pushes : queue of SentVerb, or None
            What a trainer sends, who has so many seconds for each verb. Ranks vote behind the last.

        Raises
        ------
        GroupError (``unanswered``, ``out-of-step``, ``engine-lost``)
            If ranks do not answer; how the update ends is not known then.
        """
        known_digest = place.digest or self.digests.get(place.version)
        promised = msgspec.structs.replace(place, digest=known_digest)
        began_s, restorable = time.monotonic(), self.is_restorable
        wanted: Opens | None = Opens(Operation.UPDATE, on_failure=OnFailure.RESTORE, restorable=restorable)
        late_s, paused, gave_up = began_s + deadline_s, False, False
        await self.look()
        state = GroupState.of(self.view())
        while True:
            view = self.view()
            voted, expired = _all_voted(view), time.monotonic() > late_s
            ready = voted if pushes is None else decide.is_prepared(view)
            if ready and wanted is None and not (self._restores or end.votes):
                end.votes = [_vote(each) for each in self.answers]
                end.version = end.votes[0]["version"]  # a rank that was pushed it may have named it
                self._place = self._place and msgspec.structs.replace(self._place, version=end.version)
                asked_s = time.monotonic()
                gave_up = not (self._digest_of("staged") and await may_load(end))
                late_s += time.monotonic() - asked_s
            known = self._known(view, wanted, expired=expired, gave_up=gave_up)
            move = advance(state, view, known)
            state = move.state
            self._record(move, promised)
            if move.arguments is not None:
                late_s, gave_up = time.monotonic() + deadline_s, False
                wanted = wanted if self._restores else None
            if move.todo is GroupTodo.END:
                self._ended(view, end if wanted is None or self._restores else UpdateEnd())
            elif move.todo in (GroupTodo.WAIT, GroupTodo.READ_REPORTS):
                if voted and not (paused or expired or gave_up):
                    _lap(end, "voted", began_s)
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(pause(), max(late_s - time.monotonic(), 0.0))
                        paused = True
                    gave_up = not paused
                    _lap(end, "paused", began_s)
                    continue
                loads = voted and paused
                sent = await self._sent(pushes, late_s, end) if pushes and loads else None
                late_s = late_s if sent is None else time.monotonic() + deadline_s
                limit_s = max(late_s - time.monotonic(), self._answer_s) if loads else self._answer_s
                await self._tell(limit_s, view, load=loads, sent=sent)
                if not loads and self.view() == view:
                    tenth_s = (time.monotonic() - began_s) / 10
                    await asyncio.sleep(min(max(tenth_s, _LOOK_S), _LONGEST_LOOK_S))
            elif move.todo is not GroupTodo.LOOK:
                _lap(end, "over", began_s)
                self._is_settled = True
                if not (end.committed or end.errors):
                    end.errors.append({"code": "deadline", "message": f"{_LATE} {deadline_s:g} s"})
                return

    async def _sent(self, pushes: asyncio.Queue[SentVerb], late_s: float, end: UpdateEnd) -> SentVerb | None:
        """Return what a trainer sends next; None: nothing in time, or the version before is loaded."""
        sent = None
        if not self._restores:
            with suppress(asyncio.TimeoutError):
                sent = await asyncio.wait_for(pushes.get(), max(late_s - time.monotonic(), 0.0))
        if sent is not None and sent.verb == FINISH and self._place is not None and self.command is not None:
            end.version = sent.version or unnamed_version(self._server, *self.command[:2])
            named = {"version": end.version, "digest": self.digests.get(end.version)}
            self._place = msgspec.structs.replace(self._place, **named)
        return sent

    def _record(self, move: GroupMove, place: VersionPlace) -> None:
        """Take in what is given or decided, before any rank is told."""
        if move.arguments is not None:
            self._restores = move.arguments.restores
            self._place = self._place if self._restores else place
        if move.record is not None and move.record.version is not None:
            self.version, self.digest = move.record.version, self._digest_of("staged")
            self.digests[self.version] = self.digest or ""
            self.place = self.place if self._restores else self._place
        self._committed = move.committed or self._committed
        if move.command is not None:
            self.command, self._is_settled = move.command, False

    def _known(self, view: View, wanted: Opens | None, *, expired: bool, gave_up: bool) -> Known:
        agree, place = self._digest_of("staged") is not None, None if self._restores else self._place
        return Known(
            May.DRIVE,
            wanted=wanted,
            expired=expired,
            gave_up=gave_up or (_all_voted(view) and not agree),
            agree=agree and not gave_up if decide.is_prepared(view) else None,
            version=self.version if place is None else place.version,
            committed=self.version,
            restores=self._restores,
            restore_limit=1,
        )

    def lost(self, code: str, what: object, *, final: bool = True, **about: Any) -> GroupError:
        """Take in, and return, why no answer is believed any more, or none is there."""
        self.fault = GroupError(f"{_LOST[code]} ({what})", code=code, final=final, **about)
        return self.fault

    @property
    def stopped(self) -> list[int]:
        """Ranks whose processes are stopped, as far as that is seen on this host."""
        each = ((rank, answer["process"]) for rank, answer in enumerate(self.answers))
        return [rank for rank, process in each if ProcessIdentity(*process).is_stopped]

    def _ended(self, view: View, end: UpdateEnd) -> None:
        """Take in how a command has ended; `end` is that of the update that it belongs to."""
        committed = view.command.operation.is_commit
        end.errors += [{"rank": each["rank"], **each["error"]} for each in self.answers if each["error"]]
        if self._restores:
            end.restored = committed
        else:
            end.committed = committed
            end.fingerprints = [each["fingerprint"] for each in self.answers] if committed else []
            if len({vote["digest"] for vote in end.votes}) > 1:
                said = ", ".join(f"rank {vote['rank']} {vote['digest']}" for vote in end.votes)
                message = f"the ranks have got different bytes: {said}"
                end.errors.append({"code": "votes-differ", "message": message})
        self._restores = False

    def _digest_of(self, what: str) -> str | None:
        """Return the digest of what all ranks have staged, or serve; None if they differ, or one has none."""
        digests = {(answer.get(what) or {}).get("digest") for answer in self.answers}
        return digests.pop() if len(digests) == 1 else None

    def view(self) -> View:
        """Return what all ranks have said, as far as it is believed."""
        words = [(rank, answer["words"]) for rank, answer in enumerate(self.answers)]
        answers = [
            RankAnswer(
                rank, term, CommandWord.unpack(heard), StatusWord.unpack(status), CommittedWord.unpack(stored)
            )
            for rank, (term, heard, status, stored) in words
        ]
        term = max((answer.term for answer in answers), default=0)
        recorded, committed = self.command, self._committed
        return view_of_answers(self.ranks, answers, term=term, recorded=recorded, committed=committed)

    async def _tell(self, limit_s: float, view: View, *, load: bool, sent: SentVerb | None = None) -> None:
        words = view.command.pack(), view.committed.pack()
        about = {"place": msgspec.to_builtins(self._place), "restores": self._restores}
        touched = any_touched(view) if all_stopped(view) else None
        verb = sent and {"verb": sent.verb, "given": sent.given}
        await self._ask(limit_s, do="tell", words=words, load=load, touched=touched, sent=verb, **about)
        if sent is not None and sent.verb != FINISH and not decide.any_failed(self.view()):
            sent.done.set()

    async def _ask(self, limit_s: float, **question: Any) -> None:
        if self.fault is not None and self.fault.context["final"]:
            raise self.fault
        if self._late is None:
            self._late_token = f"{self._server}-{next(self._serial)}"
            asked = {"token": self._late_token, "server": self._server, **question}
            self._late = asyncio.ensure_future(self._call(asked))
        done, _ = await asyncio.wait({self._late}, timeout=_LOOK_S if self.fault else limit_s)
        if not done:
            stopped, doing = self.stopped, "in a reload" if question.get("load") else "between two steps"
            named = "".join(f"; rank {rank} is stopped" for rank in stopped)
            about = {"rank": stopped[0]} if stopped else {}
            raise self.lost("unanswered", f"not in {limit_s:g} s, {doing}{named}", final=False, **about)
        late, token, self._late, self.fault = self._late, self._late_token, None, None
        try:
            answers = late.result()
        except Exception as error:  # its later answers are not believed
            raise self.lost("engine-lost", described(error)) from error
        tokens = [answer.get("token") if isinstance(answer, dict) else None for answer in answers]
        if tokens != [token] * self.ranks:
            raise self.lost("out-of-step", f"asked {token}, answered {tokens}")
        for answer in answers:
            if "words" not in answer:
                said = answer["error"]
                raise GroupError(f"rank {answer['rank']}: {said['message']}", code=said["code"])
        self.answers = answers


def _vote(answer: dict[str, Any]) -> dict[str, Any]:
    kept = answer["served"]["memory_bytes"] if answer["served"] else 0
    return {"rank": answer["rank"], **answer["staged"], "kept_bytes": kept}


def _lap(end: UpdateEnd, name: str, began_s: float) -> None:
    end.ms[name] = round((time.monotonic() - began_s) * 1000, 1)


def _all_voted(view: View) -> bool:
    """Whether each rank has verified the version of the open command, and none has failed since."""
    each = [status for status in view.of_all() if status is not None and status.ready]
    voted = len(each) == len(view.statuses) and not decide.any_failed(view)
    return view.command.operation.is_open and voted
