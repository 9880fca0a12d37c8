"""The role that commands a group: clear it, update it, look at it. One process at a time, per command.

Responsible for the order in which a command is begun, and for what a successor does with a command that
a dead controller left open. What is refused is in :mod:`.admission`; an open command is driven by
:mod:`.transaction`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import final

from wsm.clock import Clock, SystemClock
from wsm.command import CommandArguments
from wsm.config import EngineWordsConfig
from wsm.controller import admission
from wsm.controller.engine_words import TakenWords, take_words
from wsm.controller.errors import CommandWithdrawnError
from wsm.controller.group_view import GroupView
from wsm.controller.pending import Pending
from wsm.controller.status import GroupStatus, read_status
from wsm.controller.transaction import SETTLE_S, Transaction
from wsm.protocol import decide
from wsm.protocol.takeover import Inheritance, inherited
from wsm.protocol.view import View
from wsm.receipt import Receipt
from wsm.signals.errors import SegmentClosedError
from wsm.signals.lock import ControllerRole
from wsm.signals.lock_file import LockHold
from wsm.signals.segment import Segment
from wsm.signals.word import Operation
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
        self._counting = threading.Lock()
        self._uses = 1
        self._closed = False

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
            If it is decided to go on, and some rank has not said that it is done.
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
        still_wanted: Callable[[], bool] | None = None,
    ) -> Pending:
        """As :meth:`clear`, without waiting for its end. What is refused is raised here.

        Parameters
        ----------
        still_wanted : callable or None
            Asked once it is this controller's turn, before anything is written; False raises
            :class:`CommandWithdrawnError`.
        """
        arguments = CommandArguments(request_id or uuid.uuid4().hex, in_flight=in_flight)
        return self._begin(
            Operation.CLEAR,
            arguments,
            deadline_s=deadline_s,
            settle_s=settle_s,
            wait_s=wait_s,
            served=None,
            still_wanted=still_wanted,
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
        still_wanted: Callable[[], bool] | None = None,
    ) -> Pending:
        """As :meth:`update`, without waiting for its end; `still_wanted` as :meth:`begin_clear`."""
        arguments = CommandArguments(request_id or uuid.uuid4().hex, version, in_flight, kv_policy)
        return self._begin(
            Operation.UPDATE,
            arguments,
            deadline_s=deadline_s,
            settle_s=settle_s,
            wait_s=wait_s,
            served=None if force else version,
            still_wanted=still_wanted,
        )

    def status(self) -> GroupStatus:
        """Read what the group is doing now. Does not block, needs no role, works on a dead group.

        Raises
        ------
        wsm.signals.errors.SegmentClosedError
            If this controller was closed.
        """
        self._begin_use()
        try:
            return read_status(self._group)
        finally:
            self._end_use()

    def close(self) -> None:
        """Let go of the segment. A command under way keeps what it needs until it is over. Idempotent."""
        with self._counting:
            was_closed, self._closed = self._closed, True
        if not was_closed:
            self._end_use()

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
        still_wanted: Callable[[], bool] | None,
    ) -> Pending:
        with ExitStack() as undo:
            self._begin_use()
            undo.callback(self._end_use)
            role = self._role.acquire(wait_s)
            undo.callback(role.release)
            self._complete_inherited(role, settle_s)
            view, state = self._admit(operation)
            if still_wanted is not None and not still_wanted():
                raise CommandWithdrawnError(operation=operation.name.lower(), request_id=arguments.request_id)
            ended = admission.nothing_to_do(
                self._group, view, operation, request_id=arguments.request_id, served=served, state=state
            )
            if ended is not None:
                return Pending.ended(ended)
            taken = self._take_engine_words(operation, state)
            undo.callback(taken.give_back)
            command = self._group.open(decide.next_command(view, operation), arguments)
            pending = Transaction(
                self._group,
                role,
                command,
                arguments,
                deadline_s=deadline_s,
                settle_s=settle_s,
                clock=self._clock,
                on_over=lambda: self._end_command(taken),
            ).start()
            undo.pop_all()
            return pending

    def _admit(self, operation: Operation) -> tuple[View, WeightState]:
        """Refuse what this group cannot be asked now; return what was read, and where all ranks are."""
        admission.require_alive(self._group, operation)
        view = self._group.view()
        command = decide.next_command(view, operation)
        admission.require_equal_plans(self._group, command.epoch)
        return view, admission.require_one_state(view, operation)

    def _complete_inherited(self, role: LockHold, settle_s: float) -> None:
        """Bring a command to its end that another controller left open; the role proves that it is gone."""
        view = self._group.view()
        if inherited(view) is Inheritance.NOTHING or view.command.operation is Operation.NONE:
            return
        Transaction(
            self._group,
            role,
            view.command,
            self._group.arguments(view.command) or CommandArguments("its arguments are gone"),
            deadline_s=settle_s,
            settle_s=settle_s,
            clock=self._clock,
        ).complete()

    def _take_engine_words(self, operation: Operation, state: WeightState) -> TakenWords:
        asked = WeightState.CLEARING if operation is Operation.CLEAR else WeightState.UPDATING
        before = WeightState(state.fastdeploy_code)
        return take_words(self._engine_words, before=before, asked=asked, directory=self._directory)

    def _end_command(self, taken: TakenWords) -> None:
        try:
            taken.answer(read_status(self._group).engine_state)
        finally:
            self._end_use()

    def _begin_use(self) -> None:
        with self._counting:
            if self._closed:
                raise SegmentClosedError(path=str(self._segment.path))
            self._uses += 1

    def _end_use(self) -> None:
        """Let go of the segment with its last user: this object, or a command that outlives it."""
        with self._counting:
            self._uses -= 1
            if self._uses == 0:
                self._group.close()
                self._segment.close()
