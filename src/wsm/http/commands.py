"""One group's commands as callers over HTTP issue them: once per request id, held by a surface, kept.

Each command runs in a thread of its own. So a caller that disconnects abandons nothing, no call blocks an
event loop, and the controller role is held for no longer than the command. What outlives this process stands
in :mod:`.kept`.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from wsm import log
from wsm.command import checked_request_id
from wsm.config import EngineWordsConfig
from wsm.controller import Controller
from wsm.controller.group_view import GroupAccess
from wsm.errors import WsmError
from wsm.group_segment import journal_directory_of
from wsm.http import answers, errors
from wsm.http.closed_holds import OWNERS, ClosedHold, ClosedHolds
from wsm.http.kept import KeptRequests
from wsm.receipt import Receipt
from wsm.rollout.run_directory import run_directory_path
from wsm.shared_directory import remove_ours
from wsm.signals.names import segment_path
from wsm.signals.segment import Segment
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy, OnLease
from wsm.status import Explanation, GroupFacts, GroupStatus, explain, read_facts

#: Commands that may be under way or wait for their turn at once.
MOST_COMMANDS: Final = 64

#: Seconds between two looks at a held group, whose release no word rings for.
_LOOK_S = 0.02

#: What is remembered under the source of weights that failed, and would fail again.
_UNFIT: Final = "unfit"

#: Keywords that a request which is sent again may have otherwise.
_TIMES: Final = frozenset({"deadline_s", "settle_s", "wait_s"})

_AFTER: Final = frozenset({*After, *(each.value for each in After)})

_Read = TypeVar("_Read")


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
        The file of what outlives this process; None: ``http.jsonl`` beside the journals, or where there are
        none in the run directory of ``wsm rollout``, or beside the segment.

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
        self._running: dict[str, _CommandUnderWay] = {}
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="wsm-http-read")
        self._starters = ThreadPoolExecutor(4, thread_name_prefix="wsm-http-start")  # they wait for a file
        self._attaching = threading.Lock()
        self._group = self._attached()
        self._left: tuple[Controller, GroupAccess] | None = None
        self._watches: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[bool]] = WeakKeyDictionary()
        self.receipts_path = Path(receipts) if receipts is not None else self._place(journal_directory)
        self.kept = KeptRequests(self.receipts_path)
        self.closed_holds = ClosedHolds(self.kept, self._now)
        self.unsupported: Counter[tuple[str, ...]] = Counter()  # by surface and verb, since this server began

    # What is known ------------------------------------------------------------------------------------------

    async def status(self) -> GroupStatus:
        """Read what the group is doing now."""
        return await self.read(self._status)

    async def facts(self) -> GroupFacts:
        """Read everything that is known of the group now."""
        return await self.read(self._facts)

    async def explain(self) -> Explanation:
        """Say what the group does, why, and what to do about it."""
        return explain(await self.facts())

    async def read(self, question: Callable[[], _Read]) -> _Read:
        """Ask something that blocks for a moment, in a thread."""
        return await _within(self._readers, question)

    def segment(self) -> Segment:
        """Return the memory of the group, to be read."""
        return self._now()[1].group.segment

    async def is_held(self) -> bool:
        """Whether the group stands still. One look at memory, unless the group was started anew."""
        segment = self._group[1].group.segment
        if segment.inode_changed():
            return await self.read(lambda: self._now()[1].group.view().committed.held)
        return self._group[1].group.view().committed.held

    async def closed(self) -> ClosedHold | None:
        """Return why the group's hold may not be released blindly; None: it may be, or there is none."""
        return await self.read(self.closed_holds.now)

    async def until_open(self) -> bool:
        """Wait until the group is not held; False: the hold is closed. All who wait share one watch."""
        loop = asyncio.get_running_loop()
        watch = self._watches.get(loop)
        if watch is None or watch.done():
            watch = self._watches[loop] = loop.create_task(self._watch())
        await asyncio.wait({watch})
        return watch.result()

    async def _watch(self) -> bool:
        while await self.is_held():
            closed = await self.closed()
            if closed is not None and not closed.text_waits:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

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
        found = self.kept.request(request_id)
        if found is None:
            raise errors.request_unknown(request_id=request_id)
        with self._lock:
            if found["state"] == "running" and request_id not in self._running:
                found["state"] = "lost"  # the server that had begun it ended
        return found

    # Commands -----------------------------------------------------------------------------------------------

    async def hold(
        self,
        origin: Origin,
        *,
        in_flight: InFlightPolicy = InFlightPolicy.ABORT,
        kv_policy: KVPolicy = KVPolicy.KEEP,
        lease_s: float | None = None,
        on_lease: OnLease | str = OnLease.STAY,
        **options: Any,
    ) -> Receipt:
        """Let every rank stand at one step; a second hold of the same surface is a success.

        Raises
        ------
        RefusedError
            If another owner holds the group (code ``held-by-another``).
        WsmError
            As :meth:`wsm.Controller.hold`.
        """
        asked = {
            "in_flight": in_flight,
            "kv_policy": kv_policy,
            "lease_s": lease_s,
            "on_lease": OnLease(on_lease) if on_lease in {each.value for each in OnLease} else on_lease,
            "owner": origin.owner,
            **options,
        }

        def hold(controller: Controller, request_id: str) -> Receipt:
            leased = asked
            if self.closed_holds.now() is not None:  # its lease must not open what is closed
                leased = {**asked, "lease_s": None, "on_lease": OnLease.STAY}
            return controller.hold(request_id=request_id, **leased)

        return await self.run(origin, "hold", asked, hold)

    async def release(
        self, origin: Origin, *, force: bool = False, explicit: bool = False, **options: Any
    ) -> Receipt:
        """Let the ranks step again; of an open group it is a success.

        Parameters
        ----------
        origin : Origin
            Who asks.
        force : bool
            Release another's hold, too.
        explicit : bool
            Release a hold that is closed, too: an operator's word, and no trainer's ``finally``.

        Raises
        ------
        RefusedError
            If the hold is closed (code ``hold-closed``), another's, or the group could not serve.
        """
        asked = {"force": force, "owner": origin.owner, **options}

        def release(controller: Controller, request_id: str) -> Receipt:
            return self.closed_holds.release(
                lambda: controller.release(request_id=request_id, **asked), explicit=explicit
            )

        return await self.run(origin, "release", {**asked, "explicit": explicit}, release)

    async def clear(self, origin: Origin, **keywords: Any) -> Receipt:
        """Release weights, KV cache or both; keywords and errors as :meth:`wsm.Controller.clear`."""
        return await self.run(
            origin,
            "clear",
            keywords,
            lambda controller, name: controller.clear(request_id=name, **keywords),
        )

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
        return await self._update(origin, "update", version, source, keywords)

    async def prepare(
        self, origin: Origin, version: str | int | None = None, *, source: str | None = None, **keywords: Any
    ) -> Receipt:
        """Load a version on every rank, and leave the decision to a lease; as :meth:`wsm.Controller.lease`.

        The request id of `origin` holds the decision; no process does, so it outlives this server.
        """
        return await self._update(origin, "prepare", version, source, keywords)

    async def _update(
        self,
        origin: Origin,
        operation: str,
        version: str | int | None,
        source: str | None,
        keywords: Mapping[str, Any],
    ) -> Receipt:
        asked = {"version": version, "owner": origin.owner, **keywords}
        after = After(asked["after"]) if asked.get("after") in _AFTER else None
        self._require_fit(source)

        def update(controller: Controller, request_id: str) -> Receipt:
            done = controller.lease if operation == "prepare" else controller.update
            if after is None:  # or none that there is, which it says
                return done(request_id=request_id, **asked)
            return self.closed_holds.update(
                lambda left: done(request_id=request_id, **{**asked, "after": left}),
                after=after,
                tags=asked.get("tags"),
                owner=origin.owner,
                decides_later=operation == "prepare",
            )

        return await self.run(origin, operation, asked, update, source)

    async def commit(
        self, origin: Origin, prepared: str, *, source: str | None = None, **keywords: Any
    ) -> Receipt:
        """Serve what was prepared under the request id `prepared`; as :meth:`wsm.Controller.commit`."""
        asked = {"prepared": prepared, **keywords}
        return await self.run(
            origin, "commit", asked, lambda controller, _: controller.commit(prepared, **keywords), source
        )

    async def abort(self, origin: Origin, prepared: str | None = None, **keywords: Any) -> Receipt:
        """Take back what was prepared; None: whatever was. As :meth:`wsm.Controller.abort`."""
        asked = {"prepared": prepared, **keywords}
        return await self.run(
            origin, "abort", asked, lambda controller, _: controller.abort(prepared, **keywords)
        )

    async def fail_closed(self, origin: Origin, *, verb: str, reason: str, **how: Any) -> bool:
        """Close a hold, since a verb was refused, or failed, that its trainer may take for done.

        Until an update or an explicit release, every other release is refused; `how` and more as
        :meth:`.ClosedHolds.close`. Returns whether there is such a hold; an open group stays as it is.
        """
        return await asyncio.to_thread(
            self.closed_holds.close, origin.surface, verb=verb, reason=reason, **how
        )  # and no reader: it may wait for a release

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
        request_id = uuid.uuid4().hex if origin.request_id is None else checked_request_id(origin.request_id)
        same = {name: value for name, value in asked.items() if name not in _TIMES}  # patience is no request
        begun = _CommandUnderWay(request_id, operation, origin, plain_arguments(same), source)
        known = await _within(self._starters, lambda: self._begun(begun, command))
        if isinstance(known, Receipt):
            return known
        return await asyncio.shield(asyncio.wrap_future(known.end))

    def close(self, wait_s: float = 0.0) -> None:
        """Let go of the group, once commands under way are over or `wait_s` has passed."""
        deadline = time.monotonic() + wait_s
        wait([running.end for running in self._running.values()], max(deadline - time.monotonic(), 0))
        for pool in (self._readers, self._starters):
            pool.shutdown(wait=False, cancel_futures=True)
        for attached in (self._group, self._left or ()):
            for each in attached:
                each.close()
        segment = segment_path(self.name, self.directory)
        if self.receipts_path.parent == segment.parent and not segment.exists():  # of a group that has ended
            remove_ours(self.receipts_path)

    # The parts ----------------------------------------------------------------------------------------------

    def _begun(
        self, asked: _CommandUnderWay, command: Callable[[Controller, str], Receipt]
    ) -> _CommandUnderWay | Receipt:
        """Begin a command unless its request id names one that runs, or that is done."""
        controller, access = self._now()
        run_id = access.group.segment.run_id
        with self._lock:
            running = self._running.get(asked.request_id)
            kept = self.kept.request(asked.request_id)
            if kept is not None and (kept["operation"], kept["asked"]) != (asked.operation, asked.asked):
                raise errors.request_id_used(request_id=asked.request_id, operation=kept["operation"])
            if running is not None:
                return running
            if kept is not None and kept["state"] == "succeeded" and kept["run_id"] == run_id:
                return Receipt.from_mapping(kept["receipt"])
            if len(self._running) >= MOST_COMMANDS:
                raise errors.server_busy(running=len(self._running))
            self._running[asked.request_id] = asked
        self._keep(asked, run_id, state="running")
        try:
            threading.Thread(
                # In the trace of the request that is answered.
                target=contextvars.copy_context().run,
                args=(self._drive, asked, run_id, controller, command),
                name="wsm-http",
                daemon=True,
            ).start()
        except RuntimeError:
            with self._lock:
                del self._running[asked.request_id]
            raise errors.server_busy(running=len(self._running)) from None
        return asked

    def _drive(
        self,
        asked: _CommandUnderWay,
        run_id: str,
        controller: Controller,
        command: Callable[[Controller, str], Receipt],
    ) -> None:
        """Bring one command to its end, keep that, and tell who waits. In a thread."""
        asked.end.set_running_or_notify_cancel()
        try:
            receipt = replace(command(controller, asked.request_id), request_id=asked.request_id)
            if asked.operation in ("update", "commit", "release"):
                self.closed_holds.reopen_after(receipt, sent=asked.source is not None)
            self._keep(asked, run_id, state="succeeded", receipt=dict(receipt.to_mapping()))
        except BaseException as error:  # noqa: BLE001 - who waits gets it, whatever it is
            if not isinstance(error, WsmError):
                log.logger("http").error(log.REQUEST_FAILED, operation=asked.operation, error=repr(error))
            elif asked.source is not None and answers.is_final(error):
                failure = {"run_id": run_id, "error": answers.error_mapping(error)}
                self.kept.remember(_UNFIT, asked.source, failure)
            try:
                self._keep(asked, run_id, state="failed", error=answers.error_mapping(error))
            finally:
                with self._lock:
                    del self._running[asked.request_id]
                asked.end.set_exception(error)
        else:
            with self._lock:
                del self._running[asked.request_id]
            asked.end.set_result(receipt)

    def _keep(self, asked: _CommandUnderWay, run_id: str, **what: Any) -> None:
        self.kept.keep(
            {
                "request_id": asked.request_id,
                "operation": asked.operation,
                "surface": asked.origin.surface,
                "traceparent": asked.origin.traceparent,
                "asked": asked.asked,
                "run_id": run_id,
                "at": time.time(),
                **what,
            }
        )

    def _require_fit(self, source: str | None) -> None:
        failure = None if source is None else self.kept.note(_UNFIT, source)
        if failure is not None and failure["run_id"] == self._group[1].group.segment.run_id:
            raise answers.error_of(failure, status=422)

    def _status(self) -> GroupStatus:
        return self._now()[1].group.status()

    def _facts(self) -> GroupFacts:
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
        kept_in = journal_directory or journal_directory_of(self._group[1].group.segment)
        if kept_in is not None:
            return Path(kept_in).absolute() / "http.jsonl"
        run = run_directory_path(self.name, self.directory)
        return run / "http.jsonl" if run.is_dir() else run.with_suffix(".http")


class _CommandUnderWay:
    """A command under way."""

    def __init__(
        self, request_id: str, operation: str, origin: Origin, asked: dict[str, Any], source: str | None
    ) -> None:
        self.request_id = request_id
        self.operation = operation
        self.origin = origin
        self.asked = asked
        self.source = source
        self.end: Future[Receipt] = Future()


async def _within(pool: ThreadPoolExecutor, question: Callable[[], _Read]) -> _Read:
    asked = contextvars.copy_context().run  # in the trace of the request that is answered
    return await asyncio.wrap_future(pool.submit(asked, question))


def plain_arguments(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON has them, those that say nothing left out: to be sent, kept and compared."""
    given = {key: value for key, value in asked.items() if value is not None}
    plain: dict[str, Any] = json.loads(json.dumps(given, default=_plain_value, sort_keys=True))
    return plain


def _plain_value(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted(str(_plain_value(each)) for each in value)
    return str(value)
