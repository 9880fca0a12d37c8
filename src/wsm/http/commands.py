"""One group's commands as callers over HTTP issue them: once per request id, held by a surface, kept.

Each command runs in a thread of its own. So a caller that disconnects abandons nothing, no call blocks an
event loop, and the controller role is held for no longer than the command. What outlives this process stands
in :mod:`.kept`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from msgspec import structs

from wsm import log
from wsm.command import checked_request_id
from wsm.committed_record import CommittedRecord
from wsm.config import EngineWordsConfig
from wsm.controller import Controller, Pending
from wsm.controller.group_view import GroupAccess
from wsm.errors import RefusedError, WsmError
from wsm.http import answers, errors
from wsm.http.closed_holds import ClosedHolds
from wsm.http.hold_table import OWNERS, Meaning, Text
from wsm.http.kept import KeptRequests
from wsm.http.native.schema import FleetAnswer
from wsm.metrics.history import ServerCounts
from wsm.receipt import Outcome, Receipt
from wsm.shared_directory import remove_ours
from wsm.signals.layout import segment_path
from wsm.signals.owner_settings import settings_in
from wsm.signals.presence import ProcessIdentity
from wsm.signals.segment import Segment
from wsm.states.holding import ClosedBy, ClosedHold
from wsm.states.vocabulary import ALL_TAGS, After, Tag
from wsm.status import Explanation, GroupStatus, explain, read_facts
from wsm.strategies.adopt.record import asked_label
from wsm.typed import Wait, typed, typed_calls

#: Commands that may be under way or wait for their turn at once.
MOST_COMMANDS: Final = 64

#: Seconds between two looks at a held group, whose release no word rings for.
_LOOK_S = 0.02

#: Seconds between two looks at a request that another server runs.
_FOLLOWED_S = 0.05

#: What is remembered under the source of weights that failed, and would fail again.
_UNFIT: Final = "unfit"

#: What is kept under a trainer's word for weights: the version that it called so last.
_CALLED: Final = "called"

#: Bytes of a request's arguments that are kept; of longer ones the digest is.
_MOST_ARGUMENTS: Final = 4096

#: Keywords that a request which is sent again may have otherwise.
_TIMES: Final = frozenset({"deadline_s", "settle_s", "wait_s"})

_Read = TypeVar("_Read")


@typed
@dataclass(frozen=True)
class Origin:
    """Where a command comes from.

    Parameters
    ----------
    surface : str
        The surface that asks; its holds are its own.
    request_id : str or None
        The caller's name for the request: asked again, it answers the same receipt. None: one is drawn.
    traceparent : str or None
        The W3C trace context of the caller.
    """

    surface: str
    request_id: str | None = None
    traceparent: str | None = None

    @property
    def owner(self) -> str:
        """Whose the holds are that it asks for."""
        return f"{OWNERS}{self.surface}"


class AdoptedDirectory(NamedTuple):
    """A directory that ranks can load.

    Parameters
    ----------
    label : str
        Under which; where the label that was asked for names other content already, another that says so.
    source : str or None
        Names the content, path and digest: what failed once, and would fail again, is known by it. None:
        its digest is not known here, so it may be other content each time.
    warning : str or None
        What its answer says besides: that the label was other content's, or that its files are links.
    """

    label: str
    source: str | None
    warning: str | None = None


#: ``adopt(directory, label)`` takes a trainer's directory in, so that its deletion is harmless, and returns
#: what ranks load; None for the label takes it from the directory's name. It blocks while it copies or
#: digests; raises WsmError if the directory is not below a declared root, or lacks what a version must have.
AdoptDirectory: TypeAlias = Callable[[str, str | None], AdoptedDirectory]


class TargetReader(Protocol):
    """Reads the target of the fleet that a group is a replica of."""

    def require_admitted(self, group: str, digest: str | None) -> None:
        """Refuse text where a group holds what is not allowed (code ``fleet-stale``)."""

    def require_own(self, label: str | None, digest: str | None) -> None:
        """Refuse an update to what is not allowed (``not-the-fleets``); reads the target, and blocks.

        `digest` None: it is not known yet.
        """

    def standing(self, digest: str | None, *, serving: bool, step: str | None = None) -> FleetAnswer:
        """Return what a group counts as that holds this; reads the target, and blocks."""


@typed_calls
class Commands:
    """Commands one group for callers over HTTP. Safe for threads and event loops.

    Parameters
    ----------
    name : str
        The group.
    directory, journal_directory : path or None
        As :class:`wsm.Controller`.
    engine_words : EngineWordsConfig or None
        As :class:`wsm.Controller`.
    receipts : path or None
        The file of what outlives this process; None: ``http.sqlite`` beside the journals, or where there are
        none beside the ranks' logs, or beside the segment.

    Raises
    ------
    WsmError
        As :class:`wsm.Controller`.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: str | Path | None = None,
        journal_directory: str | Path | None = None,
        engine_words: EngineWordsConfig | None = None,
        receipts: str | Path | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self._options = {"engine_words": engine_words, "journal_directory": journal_directory}
        self._lock = threading.Lock()
        # As they are kept, by their names, and as their callers wait for them.
        self._running: dict[str, tuple[dict[str, Any], Pending]] = {}
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="wsm-http-read")
        self._followers = ThreadPoolExecutor(4, thread_name_prefix="wsm-http-follow")  # they wait for a file
        self._attaching = threading.Lock()
        self._group = self._attached()
        self._left: tuple[Controller, GroupAccess] | None = None
        self._watches: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()
        self.receipts_path = Path(receipts) if receipts is not None else self._place(journal_directory)
        self.counts = ServerCounts()
        self.fleet: TargetReader | None = None
        self.kept = KeptRequests(self.receipts_path, self.counts)
        self.closed_holds = ClosedHolds(self._now)

    # What is known ------------------------------------------------------------------------------------------

    async def status(self) -> GroupStatus:
        """Read what the group is doing now."""
        return await self.read(self._status)

    async def facts(self) -> GroupStatus:
        """Read everything that is known of the group now."""
        return await self.read(self._facts)

    async def explain(self) -> Explanation:
        """Say what the group does, why, and what to do about it."""
        said = explain(await self.facts())
        fault = self.kept.fault
        return replace(said, sentences=(*said.sentences, fault)) if fault else said

    async def read(self, question: Callable[[], _Read]) -> _Read:
        """Ask something that blocks for a moment, in a thread."""
        asked = contextvars.copy_context().run  # in the trace of the request that is answered
        return await asyncio.wrap_future(self._readers.submit(asked, question))

    @property
    def run_id(self) -> str:
        """Names the group's start."""
        return self.segment().run_id

    def segment(self) -> Segment:
        """Return the memory of the group, to be read."""
        return self._now()[1].group.segment

    async def catch_up(self) -> None:
        """Take in what other servers of the group have kept. Waits for a second at most."""
        await asyncio.wrap_future(self._followers.submit(self.kept.catch_up))

    async def is_held(self) -> bool:
        """Whether the group stands still. One look at memory, unless the group was started anew."""
        if self._group[1].group.segment.inode_changed():
            await self.read(self._now)
        return self._group[1].group.view().committed.held

    def held_record(self) -> CommittedRecord:
        """Return what the group has committed, as far as it is known. Blocks if it was started anew."""
        group = self._now()[1].group
        return group.known_record(group.view())

    def held_digest(self) -> str | None:
        """Return the digest of what the group holds; None: nothing, or not known. Blocks if started anew."""
        return self.held_record().digest

    def require_allowed(self) -> None:
        """Refuse text where the group holds what its fleet does not allow (code ``fleet-stale``)."""
        if self.fleet is not None:
            self.fleet.require_admitted(self.name, self.held_digest())

    async def hold_now(self) -> tuple[Meaning, ClosedHold | None]:
        """Return what the group's hold means now, and why it is closed; None: it is not."""
        return await self.read(self.closed_holds.now)

    async def while_text_waits(self) -> None:
        """Wait until text passes, or fails. All who wait share one watch."""
        loop = asyncio.get_running_loop()
        watch = self._watches.get(loop)
        if watch is None or watch.done():
            watch = self._watches[loop] = loop.create_task(self._watch())
        await asyncio.wait({watch})
        watch.result()

    async def _watch(self) -> None:
        while await self.is_held():
            if (await self.hold_now())[0].text is not Text.WAITS:
                return
            await asyncio.sleep(_LOOK_S)

    async def prepared_by(self, surface: str) -> str | None:
        """Return the request id of what a surface has prepared and not decided; None: there is none."""

        def look() -> str | None:
            facts = self._facts()
            if facts.decision_left_s is None or facts.request_id is None:
                return None
            kept = self.kept.request(facts.request_id)
            own = kept is not None and (kept["operation"], kept["surface"]) == ("prepare", surface)
            return facts.request_id if own else None

        return await self.read(look)

    def request(self, request_id: str) -> dict[str, Any]:
        """Return what is known of a request: ``state`` is ``running``, ``succeeded``, ``failed`` or ``lost``.

        Raises
        ------
        RefusedError
            If none of that name is kept (code ``request-unknown``).
        """
        self.kept.catch_up()
        found = self.kept.request(request_id)
        if found is None:
            raise errors.request_unknown(request_id=request_id)
        elsewhere = _lives_elsewhere(found.pop("server", None))
        with self._lock:
            lives = request_id in self._running if elsewhere is None else elsewhere
        if found["state"] == "running" and not lives:
            found["state"] = "lost"  # the server that had begun it ended
        return found

    async def take_in(
        self, adopt: AdoptDirectory | None, directory: str | Path, label: str | None
    ) -> AdoptedDirectory:
        """Take a trainer's directory in, and keep what the trainer calls it.

        Raises
        ------
        RefusedError
            If there is nothing that adopts (code ``no-adopt-root``).
        WsmError
            As :class:`AdoptDirectory`.
        """
        if adopt is None:
            raise RefusedError(
                f"the directory {str(directory)!r} is not taken in: this server has no root for directories; "
                "start it with --adopt-root, or name a published version",
                code="no-adopt-root",
                directory=str(directory),
            )
        adopted = await asyncio.to_thread(adopt, str(directory), label)
        word = label or asked_label(adopted.label)
        await asyncio.to_thread(self.kept.remember, _CALLED, word, adopted.label)
        return adopted

    def called(self, word: str) -> str:
        """Return the version that a trainer called so last."""
        return str(self.kept.note(_CALLED, word) or word)

    def word_for(self, version: str | None) -> str | None:
        """Return what a trainer calls a version; None if it calls another so by now."""
        if version is None:
            return None
        word = asked_label(version)
        return word if self.kept.note(_CALLED, word) in (None, version) else None

    # Commands -----------------------------------------------------------------------------------------------

    async def hold(self, origin: Origin, *, closed: ClosedHold | None = None, **keywords: Any) -> Receipt:
        """Let every rank stand at one step; a second hold of the same surface is a success.

        Keywords as of :meth:`wsm.Controller.hold`. With `closed` it is a closed one, unless the group has
        another version by now.

        Raises
        ------
        RefusedError
            If another owner holds the group (code ``held-by-another``).
        WsmError
            As :meth:`wsm.Controller.hold`.
        """
        asked = {"owner": origin.owner, **keywords}

        def hold(controller: Controller, request_id: str) -> Receipt:
            receipt = controller.hold(request_id=request_id, **asked)
            if closed is not None:
                self.closed_holds.close(origin.surface, closed)
            return receipt

        return await self.run(origin, "hold", {**asked, "closed": closed}, hold)

    async def release(self, origin: Origin, *, force: bool = False, **options: Any) -> Receipt:
        """Let the ranks step again; of an open group it is a success.

        Parameters
        ----------
        origin : Origin
            Who asks.
        force : bool
            Release another's hold, too, and one that is closed: an operator's word, and no trainer's
            ``finally``.

        Raises
        ------
        RefusedError
            If the hold is closed (code ``hold-closed``), another's, or the group could not serve.
        """
        asked = {"force": force, "owner": origin.owner, **options}

        def release(controller: Controller, request_id: str) -> Receipt:
            if not force:
                self.closed_holds.require_none()
            return controller.release(request_id=request_id, **asked)

        return await self.run(origin, "release", asked, release)

    async def clear(self, origin: Origin, **keywords: Any) -> Receipt:
        """Release weights, KV cache or both; keywords and errors as :meth:`wsm.Controller.clear`."""

        def clear(controller: Controller, request_id: str) -> Receipt:
            return controller.clear(request_id=request_id, **keywords)

        return await self.run(origin, "clear", keywords, clear)

    async def update(
        self, origin: Origin, version: str | int | None = None, *, source: str | None = None, **keywords: Any
    ) -> Receipt:
        """Load a version and serve it; keywords and errors as :meth:`wsm.Controller.update`.

        Parameters
        ----------
        origin : Origin
            Who asks.
        version : str or int or None
            Which; None: the newest.
        source : str or None
            What names the content: path and digest. Content that failed, and would fail again, answers the
            recorded failure and reaches no rank.
        """
        return await self._update("update", origin, {"version": version, **keywords}, source)

    async def prepare(
        self, origin: Origin, version: str | int | None = None, *, source: str | None = None, **keywords: Any
    ) -> Receipt:
        """Load a version on every rank, and leave the decision to a lease; as :meth:`wsm.Controller.lease`.

        The request id of `origin` holds the decision; no process does, so it outlives this server.
        """
        return await self._update("prepare", origin, {"version": version, **keywords}, source)

    async def _update(
        self, operation: str, origin: Origin, keywords: Mapping[str, Any], source: str | None
    ) -> Receipt:
        asked = {"owner": origin.owner, **keywords}
        self._require_fit(source)

        def give(controller: Controller, request_id: str) -> Receipt:
            update = partial(self._update_as_allowed, controller)
            done = controller.lease if operation == "prepare" else update
            if asked.get("after") not in (After.SERVE, After.SERVE.value):
                return done(request_id=request_id, **asked)
            return self.closed_holds.update(
                lambda after: done(request_id=request_id, **{**asked, "after": after}),
                tags=asked.get("tags"),
                owner=origin.owner,
                decides_later=operation == "prepare",
            )

        return await self.run(origin, operation, asked, give, source)

    def _update_as_allowed(self, controller: Controller, **asked: Any) -> Receipt:
        """Update a group; a replica is prepared, and committed if it is what its fleet allows then."""
        if self.fleet is None or Tag.WEIGHTS not in (asked.get("tags") or ALL_TAGS):
            return controller.update(**asked)
        if asked["version"] is not None:
            self.fleet.require_own(str(asked["version"]), None)
        with controller.prepare(**{"hot": False, **asked}) as prepared:
            if prepared.receipt.outcome is Outcome.PREPARED:
                self.fleet.require_own(prepared.receipt.version, prepared.receipt.manifest_digest or "")
            return prepared.commit()

    async def commit(
        self, origin: Origin, prepared: str, *, source: str | None = None, **keywords: Any
    ) -> Receipt:
        """Serve what was prepared under the request id `prepared`; as :meth:`wsm.Controller.commit`."""
        asked = {"prepared": prepared, **keywords}

        def is_the_fleets() -> bool:
            receipt = (self.kept.request(prepared) or {}).get("receipt") or {}
            if self.fleet is not None:
                self.fleet.require_own(receipt.get("version"), receipt.get("manifest_digest") or "")
            return True

        def commit(controller: Controller, _: str) -> Receipt:
            return controller.commit(prepared, still_wanted=is_the_fleets, **keywords)

        return await self.run(origin, "commit", asked, commit, source)

    async def abort(self, origin: Origin, prepared: str | None = None, **keywords: Any) -> Receipt:
        """Take back what was prepared; None: whatever was. As :meth:`wsm.Controller.abort`."""
        asked = {"prepared": prepared, **keywords}

        def abort(controller: Controller, _: str) -> Receipt:
            return controller.abort(prepared, **keywords)

        return await self.run(origin, "abort", asked, abort)

    async def reopen(self, surface: str) -> None:
        """Let a closed hold be an ordinary one, since an update of this surface has succeeded."""
        await asyncio.to_thread(self.closed_holds.reopen, surface, sent=False)

    async def fail_closed(
        self,
        origin: Origin,
        *,
        verb: str,
        reason: str,
        by: ClosedBy = ClosedBy.REFUSED,
        before: str | None = None,
    ) -> bool:
        """Close a hold, since a verb was refused, or failed, that its trainer may take for done.

        As :meth:`.ClosedHolds.close`; `before`: of a failure, what the group had before. Returns whether
        there is such a hold; an open group stays as it is.
        """
        closed = ClosedHold(origin.surface, verb, reason, before, by)
        return await asyncio.to_thread(self.closed_holds.close, origin.surface, closed)

    async def run(
        self,
        origin: Origin,
        operation: str,
        asked: Mapping[str, Any],
        command: Callable[[Controller, str], Receipt],
        source: str | None = None,
    ) -> Receipt:
        """Run one command under its request id, and wait for its end; to cancel this leaves it as it is.

        Raises
        ------
        BadInputError
            If the request id cannot name a request.
        RefusedError
            If it names another request (code ``request-id-used``), or too many commands wait
            (``server-busy``).
        WsmError
            As the command.
        """
        name = origin.request_id
        plain = plain_arguments({each: said for each, said in asked.items() if each not in _TIMES})
        text = json.dumps(plain, sort_keys=True).encode()
        request = {
            "request_id": uuid.uuid4().hex if name is None else checked_request_id(name),
            "operation": operation,
            "surface": origin.surface,
            "traceparent": origin.traceparent,
            "asked": plain if len(text) <= _MOST_ARGUMENTS else {"sha256": hashlib.sha256(text).hexdigest()},
            "server": ProcessIdentity.current(),
        }
        return await self._begun(request, command, source)

    def close(self, wait_s: Wait = 0.0) -> None:
        """Let go of the group, once commands under way are over or `wait_s` has passed."""
        deadline = time.monotonic() + wait_s
        for _, pending in [*self._running.values()]:
            with contextlib.suppress(Exception):
                pending.result(max(deadline - time.monotonic(), 0))
        for pool in (self._readers, self._followers):
            pool.shutdown(wait=False, cancel_futures=True)
        for attached in (self._group, self._left or ()):
            for each in attached:
                each.close()
        self.kept.close()
        segment = segment_path(self.name, self.directory)
        if self.receipts_path.parent == segment.parent and not segment.exists():  # of a group that has ended
            for suffix in ("", "-journal"):
                remove_ours(self.receipts_path.with_name(f"{self.receipts_path.name}{suffix}"))

    # The parts ----------------------------------------------------------------------------------------------

    def _begun(
        self, request: dict[str, Any], command: Callable[[Controller, str], Receipt], source: str | None
    ) -> Pending:
        """Begin a command in a thread of its own, unless its request id names one that runs here."""
        name = request["request_id"]
        pending = Pending(name, lambda: None)

        def work() -> Receipt:
            try:
                return self._done(request, command, source)
            finally:
                with self._lock:
                    del self._running[name]

        with self._lock:
            if name in self._running:
                _require_same(request, self._running[name][0])
                return self._running[name][1]
            if len(self._running) >= MOST_COMMANDS and self.kept.request(name) is None:
                raise errors.server_busy(running=len(self._running))
            self._running[name] = request, pending
        in_trace = contextvars.copy_context().run  # of the request that is answered
        try:
            threading.Thread(target=in_trace, args=(pending.run, work), name="wsm-http", daemon=True).start()
        except RuntimeError:  # the kernel grants none
            with self._lock:
                del self._running[name]
            raise errors.server_busy(running=len(self._running)) from None
        return pending

    def _done(
        self, request: dict[str, Any], command: Callable[[Controller, str], Receipt], source: str | None
    ) -> Receipt:
        """Do a command, and keep its end; one that was done, or that another server does, has its end."""
        controller, access = self._now()
        name, request["run_id"] = request["request_id"], access.group.segment.run_id
        while standing := self.kept.claim(_told(request, "running"), partial(_is_free, request)):
            _require_same(request, standing)
            while standing["state"] == "running":
                time.sleep(_FOLLOWED_S)
                standing = self.request(name)
            if standing["state"] == "succeeded":
                return Receipt.from_mapping(standing["receipt"])
            if standing["state"] == "failed":
                raise answers.error_of(standing, status=500)
        try:
            receipt = structs.replace(command(controller, name), request_id=name)
            if request["operation"] in ("update", "commit") and source is not None:
                self.closed_holds.reopen(request["surface"], sent=True)
            self.kept.keep(_told(request, "succeeded", receipt=dict(receipt.to_mapping())))
        except BaseException as error:
            self._failed(request, source, error)
            raise
        return receipt

    def _failed(self, request: dict[str, Any], source: str | None, error: BaseException) -> None:
        """Keep that a command has failed; and of its source, where that would fail again."""
        told = answers.error_mapping(error)
        if not isinstance(error, WsmError):
            log.logger("http").error(log.REQUEST_FAILED, operation=request["operation"], error=repr(error))
        elif source is not None and answers.status_of(error) == 422:
            self.kept.remember(_UNFIT, source, {"run_id": request["run_id"], "error": told})
        self.kept.keep(_told(request, "failed", error=told))

    def _require_fit(self, source: str | None) -> None:
        failure = None if source is None else self.kept.note(_UNFIT, source)
        if failure is not None and failure["run_id"] == self._group[1].group.segment.run_id:
            raise answers.error_of(failure, status=422)

    def _status(self) -> GroupStatus:
        return self._now()[1].group.status()

    def _facts(self) -> GroupStatus:
        segment = self._now()[1].group.segment
        return read_facts(self.name, segment, lock_file=segment.lock_file)

    def _attached(self) -> tuple[Controller, GroupAccess]:
        controller = Controller(self.name, directory=self.directory, **self._options)  # type: ignore[arg-type] # of its own names
        try:
            return controller, GroupAccess(self.name, directory=self.directory)
        except BaseException:
            controller.close()
            raise

    def _now(self) -> tuple[Controller, GroupAccess]:
        """Return the group as it is now: attached anew, which blocks, where it was started again."""
        if not self._group[1].group.segment.inode_changed():
            return self._group
        with self._attaching:
            if self._group[1].group.segment.inode_changed():
                older, self._left, self._group = self._left, self._group, self._attached()
                for each in older or ():  # the one before this may be looked at still
                    each.close()
            return self._group

    def _place(self, journal_directory: str | Path | None) -> Path:
        segment = self._group[1].group.segment
        said = settings_in(segment.settings)
        kept_in = journal_directory or said.journals or said.logs
        if kept_in:
            return Path(kept_in).absolute() / "http.sqlite"
        return segment.path.with_name(f"{segment.path.name}.http")


def _what_is_asked(request: Mapping[str, Any]) -> tuple[Any, ...]:
    return request["operation"], request["asked"]


def _require_same(request: Mapping[str, Any], standing: Mapping[str, Any]) -> None:
    """Refuse a request id that names another request (code ``request-id-used``)."""
    if _what_is_asked(request) != _what_is_asked(standing):
        raise errors.request_id_used(request_id=request["request_id"], operation=standing["operation"])


def _told(request: Mapping[str, Any], state: str, **what: Any) -> dict[str, Any]:
    """Return a request as it is kept now."""
    return {**request, "at": time.time(), "state": state, **what}


def _is_free(request: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Whether a request may begin although its name is kept: the one before it came to no end that counts."""
    if _what_is_asked(kept) != _what_is_asked(request):
        return False
    if kept["state"] == "succeeded":
        return bool(kept["run_id"] != request["run_id"])
    return kept["state"] != "running" or not _lives_elsewhere(kept.get("server"))


def _lives_elsewhere(kept: object) -> bool | None:
    """Whether the server that has kept a request lives; None: it is this one, or has not said who it is."""
    try:
        server = ProcessIdentity(*map(int, kept))  # type: ignore[call-overload] # what is none is a TypeError
    except (TypeError, ValueError):
        return None
    return None if server.pid == os.getpid() else server.is_known_alive


def plain_arguments(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON has them, those that say nothing left out: to be sent, kept and compared."""
    given = {key: value for key, value in asked.items() if value is not None}
    plain: dict[str, Any] = json.loads(answers.json_bytes(given))
    return plain
