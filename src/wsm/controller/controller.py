"""The role that commands a group: clear it, update it, look at it. One process at a time, per command.

Responsible for what is refused before anything is written, and for what a successor does with a
command that a dead controller left open. An open command is driven by :mod:`.transaction`.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from types import TracebackType
from typing import final

from wsm.clock import Clock, SystemClock
from wsm.command import CommandArguments
from wsm.config import EngineWordsConfig
from wsm.controller.engine_words import TakenWords, take_words
from wsm.controller.errors import MixedGroupError, PlansDifferError, RankLostError
from wsm.controller.group_view import GroupView
from wsm.controller.status import GroupStatus, read_status
from wsm.controller.transaction import SETTLE_S, Pending, Transaction
from wsm.protocol import decide
from wsm.protocol.takeover import Inheritance, inherited
from wsm.protocol.view import View
from wsm.receipt import Outcome, Receipt
from wsm.signals.lock import ControllerRole
from wsm.signals.lock_file import LockHold
from wsm.signals.segment import Segment
from wsm.signals.word import Operation, StatusCode
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, WeightState


@final
class Controller:
    """Commands the group `name`.

    Any number of processes may have one; the kernel lets one command at a time. Safe for threads.

    Parameters
    ----------
    name : str
        The group.
    engine_words : EngineWordsConfig or None
        FastDeploy's words of the same group: each command takes them first, as an engine would.
    clock : Clock or None
        For deadlines; None is the host's.
    directory : path or None
        Where the segment lies; ``/dev/shm`` by default.

    Raises
    ------
    wsm.signals.errors.SegmentMissingError
        If there is no such group. Other errors of :meth:`wsm.signals.segment.Segment.attach` likewise.
    """

    def __init__(
        self,
        name: str,
        *,
        engine_words: EngineWordsConfig | None = None,
        clock: Clock | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._directory = directory
        self._engine_words = engine_words or EngineWordsConfig()
        self._segment = Segment.attach(name, directory=directory)
        self._group = GroupView(self._segment)
        self._role = ControllerRole(self._segment)

    def clear(
        self,
        *,
        in_flight: InFlightPolicy = InFlightPolicy.ABORT,
        deadline_s: float = 60.0,
        settle_s: float = SETTLE_S,
        wait_s: float = 0.0,
        request_id: str | None = None,
    ) -> Receipt:
        """Release weights and KV cache on every rank, and wait for it.

        Parameters
        ----------
        in_flight : InFlightPolicy
            What becomes of running requests.
        deadline_s : float
            Seconds after which an undecided command is aborted.
        settle_s : float
            Seconds after a decision until :class:`UnsettledError` says who is not done.
        wait_s : float
            Seconds to wait for another controller to finish its command; 0 is refused at once.
        request_id : str or None
            Names the request everywhere; drawn if not given.

        Returns
        -------
        Receipt
            ``CLEARED``, or ``ALREADY_CLEARED`` where nothing was held.

        Raises
        ------
        wsm.signals.errors.RoleBusyError, wsm.protocol.errors.CommandOpenError
            If another command is under way. Nothing was written.
        CommandRefusedError
            If a rank refused. Nothing was changed.
        RankFailedError, RankLostError, CommandTimeoutError
            If a rank failed, died, or was late; the message says what the group holds now.
        UnsettledError
            If it is decided and some rank has not said that it is done.
        """
        return self.begin_clear(
            in_flight=in_flight,
            deadline_s=deadline_s,
            settle_s=settle_s,
            wait_s=wait_s,
            request_id=request_id,
        ).result()

    def update(
        self,
        version: int | None = None,
        *,
        in_flight: InFlightPolicy = InFlightPolicy.ABORT,
        kv_policy: KVPolicy = KVPolicy.DROP,
        force: bool = False,
        deadline_s: float = 300.0,
        settle_s: float = SETTLE_S,
        wait_s: float = 0.0,
        request_id: str | None = None,
    ) -> Receipt:
        """Load a version on every rank and serve it, and wait for it.

        Parameters
        ----------
        version : int or None
            Which; None takes the newest that the source announces (``version.yaml``).
        kv_policy : KVPolicy
            What becomes of KV blocks that the old weights computed; KEEP only for a group that serves.
        force : bool
            Load even if the group serves that version already.
        in_flight, deadline_s, settle_s, wait_s, request_id
            As :meth:`clear`.

        Returns
        -------
        Receipt
            ``UPDATED``; or ``ALREADY_SERVED``, and then nothing was loaded.

        Raises
        ------
        MixedGroupError
            If the ranks are in different states. Nothing was changed.
        ManifestMismatchError
            If the ranks prepared different weights; the command was aborted.
        wsm.errors.WsmError
            As :meth:`clear`.
        """
        return self.begin_update(
            version,
            in_flight=in_flight,
            kv_policy=kv_policy,
            force=force,
            deadline_s=deadline_s,
            settle_s=settle_s,
            wait_s=wait_s,
            request_id=request_id,
        ).result()

    def begin_clear(
        self,
        *,
        in_flight: InFlightPolicy = InFlightPolicy.ABORT,
        deadline_s: float = 60.0,
        settle_s: float = SETTLE_S,
        wait_s: float = 0.0,
        request_id: str | None = None,
    ) -> Pending:
        """As :meth:`clear`, without waiting for its end. What is refused is raised here."""
        arguments = CommandArguments(request_id or uuid.uuid4().hex, in_flight=in_flight)
        return self._begin(
            Operation.CLEAR, arguments, deadline_s=deadline_s, settle_s=settle_s, wait_s=wait_s, served=None
        )

    def begin_update(
        self,
        version: int | None = None,
        *,
        in_flight: InFlightPolicy = InFlightPolicy.ABORT,
        kv_policy: KVPolicy = KVPolicy.DROP,
        force: bool = False,
        deadline_s: float = 300.0,
        settle_s: float = SETTLE_S,
        wait_s: float = 0.0,
        request_id: str | None = None,
    ) -> Pending:
        """As :meth:`update`, without waiting for its end. What is refused is raised here."""
        arguments = CommandArguments(request_id or uuid.uuid4().hex, version, in_flight, kv_policy)
        return self._begin(
            Operation.UPDATE,
            arguments,
            deadline_s=deadline_s,
            settle_s=settle_s,
            wait_s=wait_s,
            served=None if force else version,
        )

    def status(self) -> GroupStatus:
        """Read what the group is doing now. Does not block, needs no role, works on a dead group."""
        return read_status(self._group)

    def close(self) -> None:
        """Let go of the segment. A command under way keeps what it needs until it is over. Idempotent."""
        if not self._segment.is_closed:
            self._group.close()
            self._segment.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(
        self,
        operation: Operation,
        arguments: CommandArguments,
        *,
        deadline_s: float,
        settle_s: float,
        wait_s: float,
        served: int | None,
    ) -> Pending:
        role = self._role.acquire(wait_s)
        try:
            self._complete_inherited(role, settle_s)
            view = self._group.view()
            command = decide.next_command(view, operation)
            self._require_all_alive(operation)
            self._require_equal_plans(command.epoch)
            state = self._state_before(view, operation)
            nothing_to_do = self._nothing_to_do(view, operation, arguments, served, state)
            if nothing_to_do is not None:
                role.release()
                return Pending.ended(nothing_to_do)
            taken = self._take_engine_words(operation, state)
        except BaseException:
            role.release()
            raise
        self._group.open(command, arguments)
        return Transaction(
            self._group,
            role,
            command,
            arguments,
            deadline_s=deadline_s,
            settle_s=settle_s,
            clock=self._clock,
            on_over=None if taken is None else lambda: taken.answer(self._held_now()),
        ).start()

    def _require_all_alive(self, operation: Operation) -> None:
        lost = self._group.lost()
        if lost:
            raise RankLostError(operation=operation.name.lower(), ranks=lost, group=self.status().sentence())

    def _require_equal_plans(self, epoch: int) -> None:
        plans = [self._group.plans(rank, epoch) for rank in range(self._segment.world_size)]
        others = [
            rank for rank, plan in enumerate(plans) if None not in (plan, plans[0]) and plan != plans[0]
        ]
        if others:
            raise PlansDifferError(ranks=others)

    def _complete_inherited(self, role: LockHold, settle_s: float) -> None:
        """Bring a command to its end that another controller left open; the role proves that it is gone."""
        view = self._group.view()
        if inherited(view) is Inheritance.NOTHING or view.command.operation is Operation.NONE:
            return
        arguments = self._group.arguments(view.command) or CommandArguments("its arguments are gone")
        Transaction(
            self._group,
            role,
            view.command,
            arguments,
            deadline_s=settle_s,
            settle_s=settle_s,
            clock=self._clock,
        ).complete()

    def _state_before(self, view: View, operation: Operation) -> WeightState:
        """Return the state that all ranks are in; updating ranks in different states has no one meaning."""
        states = {rank: WeightState(status.weights) for rank, status in enumerate(view.statuses)}
        found = set(states.values())
        if operation is not Operation.CLEAR and (len(found) > 1 or WeightState.FAULTED in found):
            raise MixedGroupError(states={rank: state.name for rank, state in states.items()})
        return max(found)

    def _nothing_to_do(
        self,
        view: View,
        operation: Operation,
        arguments: CommandArguments,
        served: int | None,
        state: WeightState,
    ) -> Receipt | None:
        """Return the receipt of a command whose end is reached already."""
        cleared = operation is Operation.CLEAR and all(
            status.weights == WeightState.CLEARED for status in view.statuses
        )
        serves = state is WeightState.NORMAL and served is not None and served == view.committed.version
        if not cleared and not serves:
            return None
        origin = view.command._replace(sequence=view.committed.sequence)
        found = [self._group.report(r, origin, StatusCode.DONE_COMMITTED) for r in range(len(view.statuses))]
        reports = tuple(report for report in found if report is not None) if serves else ()
        digests = {report.manifest_digest for report in reports}
        return Receipt(
            request_id=arguments.request_id,
            outcome=Outcome.ALREADY_SERVED if serves else Outcome.ALREADY_CLEARED,
            epoch=view.command.epoch,
            sequence=view.committed.sequence if serves else view.command.sequence,
            version=view.committed.version if serves else None,
            previous_version=view.committed.version,
            manifest_digest=digests.pop() if len(digests) == 1 else None,
            loaded=False,
            seconds=0.0,
            pause_s=0.0,
            ranks=reports,
        )

    def _take_engine_words(self, operation: Operation, state: WeightState) -> TakenWords | None:
        if not self._engine_words.suffixes:
            return None
        asked = WeightState.CLEARING if operation is Operation.CLEAR else WeightState.UPDATING
        before = WeightState(state.fastdeploy_code)
        return take_words(self._engine_words, before=before, asked=asked, directory=self._directory)

    def _held_now(self) -> WeightState:
        return WeightState.NORMAL if self.status().serving else WeightState.CLEARED
