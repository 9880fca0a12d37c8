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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from wsm import log
from wsm.command import checked_request_id
from wsm.config import EngineWordsConfig
from wsm.controller import Controller, Pending
from wsm.controller.group_view import GroupAccess
from wsm.errors import WsmError
from wsm.group_segment import journal_directory_of
from wsm.http import answers, errors
from wsm.http.kept import KeptRequests
from wsm.receipt import Outcome, Receipt
from wsm.rollout.run_directory import run_directory_path
from wsm.shared_directory import remove_ours
from wsm.signals.names import segment_path
from wsm.signals.segment import Segment
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, OnLease
from wsm.status import Explanation, GroupFacts, GroupStatus, explain, read_facts

#: Commands that may be under way or wait for their turn at once.
MOST_COMMANDS: Final = 64

#: What the owners of holds over HTTP begin with.
OWNERS: Final = "http:"

#: Seconds between two looks at a held group, whose release no word rings for.
_LOOK_S = 0.02

#: Keywords that a request which is sent again may have otherwise.
_TIMES: Final = frozenset({"deadline_s", "settle_s", "wait_s"})

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


@dataclass(frozen=True)
class ClosedHold:
    """Why a held group is not released blindly.

    Parameters
    ----------
    hold : str
        The id of the hold.
    surface, verb, reason : str
        What was refused, and why.
    version : str or None
        What the group had committed then.
    """

    hold: str
    surface: str
    verb: str
    reason: str
    version: str | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> ClosedHold | None:
        """Return what was kept; None where nothing was, or nothing that can be read."""
        try:
            return None if said is None else cls(**said)
        except TypeError:
            return None


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
        self._unfit: dict[str, WsmError] = {}  # by source: what failed, and would fail again
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="wsm-http-read")
        self._controller, self._access = self._attached()
        self.receipts_path = Path(receipts) if receipts is not None else self._place(journal_directory)
        self._kept = KeptRequests(self.receipts_path)

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
        asked = contextvars.copy_context().run  # in the trace of the request that is answered
        return await asyncio.wrap_future(self._readers.submit(asked, question))

    def segment(self) -> Segment:
        """Return the memory of the group, to be read."""
        return self._now()[1].group.segment

    def is_held(self) -> bool:
        """Whether the group stands still. One read of memory."""
        return self._now()[1].group.view().committed.held

    async def closed(self) -> ClosedHold | None:
        """Return why the group's hold may not be released blindly; None: it may be, or there is none."""
        return await self.read(self._closed_now)

    async def until_open(self, timeout_s: float | None = None) -> bool:
        """Wait until the group is not held; False: `timeout_s` is over, or the hold is closed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.is_held():
            late = deadline is not None and time.monotonic() >= deadline
            if late or await self.closed() is not None:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def request(self, request_id: str) -> dict[str, Any]:
        """Return what is known of a request: ``state`` is ``running``, ``succeeded``, ``failed`` or ``lost``.

        Raises
        ------
        RefusedError
            If none of that name is kept (code ``request-unknown``).
        """
        found = self._kept.request(request_id)
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

        def begin(controller: Controller, request_id: str) -> Pending:
            leased = asked
            if self._closed_now() is not None:  # its lease must not open what is closed
                leased = {**asked, "lease_s": None, "on_lease": OnLease.STAY}
            return controller.begin_hold(request_id=request_id, **leased)

        return await self.run(origin, "hold", asked, begin)

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

        def begin(controller: Controller, request_id: str) -> Pending:
            closed = None if explicit else self._closed_now()
            if closed is not None:
                raise errors.hold_closed(surface=closed.surface, verb=closed.verb, reason=closed.reason)
            return controller.begin_release(request_id=request_id, **asked)

        return await self.run(origin, "release", {**asked, "explicit": explicit}, begin)

    async def clear(self, origin: Origin, **keywords: Any) -> Receipt:
        """Release weights, KV cache or both; keywords and errors as :meth:`wsm.Controller.clear`."""
        return await self.run(
            origin,
            "clear",
            keywords,
            lambda controller, name: controller.begin_clear(request_id=name, **keywords),
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
        asked = {"version": version, "owner": origin.owner, **keywords}
        self._require_fit(source)
        return await self.run(
            origin,
            "update",
            asked,
            lambda controller, name: controller.begin_update(request_id=name, **asked),
            source,
        )

    async def prepare(
        self, origin: Origin, version: str | int | None = None, *, source: str | None = None, **keywords: Any
    ) -> Receipt:
        """Load a version on every rank, and leave the decision to a lease; as :meth:`wsm.Controller.lease`.

        The request id of `origin` holds the decision; no process does, so it outlives this server.
        """
        asked = {"version": version, "owner": origin.owner, **keywords}
        self._require_fit(source)
        return await self.run(
            origin,
            "prepare",
            asked,
            lambda controller, name: controller.begin_lease(request_id=name, **asked),
            source,
        )

    async def commit(self, origin: Origin, prepared: str, **keywords: Any) -> Receipt:
        """Serve what was prepared under the request id `prepared`; as :meth:`wsm.Controller.commit`."""
        asked = {"prepared": prepared, **keywords}
        return await self.run(
            origin, "commit", asked, lambda controller, _: controller.begin_commit(prepared, **keywords)
        )

    async def abort(self, origin: Origin, prepared: str | None = None, **keywords: Any) -> Receipt:
        """Take back what was prepared; None: whatever was. As :meth:`wsm.Controller.abort`."""
        asked = {"prepared": prepared, **keywords}
        return await self.run(
            origin, "abort", asked, lambda controller, _: controller.begin_abort(prepared, **keywords)
        )

    async def fail_closed(self, origin: Origin, *, verb: str, reason: str) -> bool:
        """Close the hold that surfaces have, since a verb was refused that its trainer may take for done.

        Until an update with other weights, or an explicit release, every other release is refused. A hold of
        any surface is meant, since trainers of one group may speak to several. Returns whether there is such
        a hold; a group that is not held stays as it is.
        """
        return await self.read(lambda: self._close(origin, verb, reason))

    async def run(
        self,
        origin: Origin,
        operation: str,
        asked: Mapping[str, Any],
        begin: Callable[[Controller, str], Pending],
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
        command = _CommandUnderWay(request_id, operation, origin, plain_arguments(same), source)
        known = await self.read(lambda: self._begun(command, begin))
        if isinstance(known, Receipt):
            return known
        return await asyncio.shield(asyncio.wrap_future(known.end))

    def close(self, wait_s: float = 0.0) -> None:
        """Let go of the group, once commands under way are over or `wait_s` has passed."""
        deadline = time.monotonic() + wait_s
        wait([running.end for running in self._running.values()], max(deadline - time.monotonic(), 0))
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._controller.close()
        self._access.close()
        segment = segment_path(self.name, self.directory)
        if self.receipts_path.parent == segment.parent and not segment.exists():  # of a group that has ended
            remove_ours(self.receipts_path)

    # The parts ----------------------------------------------------------------------------------------------

    def _begun(
        self, asked: _CommandUnderWay, begin: Callable[[Controller, str], Pending]
    ) -> _CommandUnderWay | Receipt:
        """Begin a command unless its request id names one that runs, or that is done."""
        controller, access = self._now()
        run_id = access.group.segment.run_id
        with self._lock:
            running = self._running.get(asked.request_id)
            kept = self._kept.request(asked.request_id)
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
                args=(self._drive, asked, run_id, controller, begin),
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
        begin: Callable[[Controller, str], Pending],
    ) -> None:
        """Bring one command to its end, keep that, and tell who waits. In a thread."""
        asked.end.set_running_or_notify_cancel()
        try:
            receipt = replace(begin(controller, asked.request_id).result(), request_id=asked.request_id)
            self._reopen_after(asked, receipt)
            self._keep(asked, run_id, state="succeeded", receipt=dict(receipt.to_mapping()))
        except BaseException as error:  # noqa: BLE001 - who waits gets it, whatever it is
            if not isinstance(error, WsmError):
                log.logger("http").error(log.REQUEST_FAILED, operation=asked.operation, error=repr(error))
            elif asked.source is not None and answers.is_final(error):
                self._unfit[asked.source] = error
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
        self._kept.keep(
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
        error = None if source is None else self._unfit.get(source)
        if error is not None:
            raise error.with_traceback(None)

    def _close(self, origin: Origin, verb: str, reason: str) -> bool:
        controller, access = self._now()
        view = access.group.view()
        hold = access.group.known_hold(view)
        if not view.committed.held or hold is None or not hold.owner.startswith(OWNERS):
            return False
        version = access.group.known_version(view)
        self._kept.close(asdict(ClosedHold(hold.hold_id, origin.surface, verb, reason, version)))
        if hold.lease_s is not None:
            controller.hold(in_flight=hold.in_flight, kv_policy=hold.kv_policy, owner=hold.owner)
        log.logger("http").warning(log.HOLD_CLOSED, surface=origin.surface, verb=verb, reason=reason)
        return True

    def _closed_now(self) -> ClosedHold | None:
        closed = ClosedHold.of(self._kept.closed)
        if closed is None:
            return None
        group = self._now()[1].group
        view = group.view()
        hold = group.known_hold(view)
        in_force = view.committed.held and hold is not None and hold.hold_id == closed.hold
        return closed if in_force and group.known_version(view) in (None, closed.version) else None

    def _reopen_after(self, asked: _CommandUnderWay, receipt: Receipt) -> None:
        """Let a closed hold be an ordinary one again once its group was updated."""
        brought = receipt.outcome in (Outcome.UPDATED, Outcome.ALREADY_SERVED, Outcome.ALREADY_HELD)
        weights = not receipt.tags or "weights" in receipt.tags
        closed = ClosedHold.of(self._kept.closed)
        if closed is not None and asked.source is None and receipt.version == closed.version:
            brought = False  # what the group had before the verb that was refused is loaded again
        if receipt.outcome is Outcome.RELEASED or (
            asked.operation in ("update", "commit") and brought and weights
        ):
            self._kept.close(None)

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
        """Return the group as it is now: attached anew where it was started again meanwhile."""
        with self._lock:
            if self._access.group.segment.inode_changed():
                old = self._controller, self._access
                self._controller, self._access = self._attached()
                for each in old:
                    each.close()
            return self._controller, self._access

    def _place(self, journal_directory: str | Path | None) -> Path:
        kept_in = journal_directory or journal_directory_of(self._access.group.segment)
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
