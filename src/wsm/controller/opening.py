"""How a command is begun: role, inheritance, admission, engine words, command word, in this order.

Whatever is refused on the way is undone and has changed nothing. What is refused is in :mod:`.admission`;
an open command is driven by :mod:`.driving`.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace

from wsm.clock import Clock
from wsm.command import CommandArguments, PartialUpdateRefusedError
from wsm.config import EngineWordsConfig
from wsm.controller import admission, fallback, outcome
from wsm.controller.access import GroupAccess
from wsm.controller.driving import Drive
from wsm.controller.engine_words import TakenWords, leave_words, take_words
from wsm.controller.errors import CommandWithdrawnError
from wsm.controller.order import Order
from wsm.controller.pending import Pending
from wsm.controller.status import read_status
from wsm.controller.transaction import Transaction
from wsm.errors import WsmError
from wsm.receipt import Receipt
from wsm.signals.errors import RoleBusyError
from wsm.signals.lock_file import LockHold
from wsm.states import decide
from wsm.states.takeover import Inheritance, inherited
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.states.words import Operation
from wsm.status.facts import Held, who

#: Seconds that a command which a dead controller left open may take to settle where the caller has no time.
TAKEOVER_S = 1.0

#: Seconds that a process of the group may take for the words of a command whose controller is gone.
ENDING_S = 0.2


class Opening:
    """Begins commands to one group.

    Parameters
    ----------
    access : GroupAccess
        The group.
    engine_words : EngineWordsConfig
        FastDeploy's words of the same group; each command takes them first.
    clock : Clock
        For deadlines.
    """

    def __init__(self, access: GroupAccess, engine_words: EngineWordsConfig, clock: Clock) -> None:
        self._access = access
        self._group = access.group
        self._engine_words = engine_words
        self._clock = clock

    def begin(self, order: Order) -> Pending:
        """Write the command, or return a receipt where nothing is to do. Blocks up to `wait_s`."""
        with ExitStack() as ending:
            self._access.begin_use()
            ending.callback(self._access.end_use)
            role = self._take_role(order.wait_s)
            ending.callback(role.release)
            self._complete_inherited(min(order.settle_s, max(order.wait_s, TAKEOVER_S)))
            view, held = self._admit(order)
            request_id = order.arguments.request_id
            if order.still_wanted is not None and not order.still_wanted():
                raise CommandWithdrawnError(operation=order.operation.name.lower(), request_id=request_id)
            ended = admission.nothing_to_do(self._group, view, order, held)
            if ended is not None:
                return Pending.ended(ended)
            standing = admission.as_it_stands(self._group, view, order, held)
            begun_ns = self._clock.monotonic_ns()
            why = fallback.before_it_began(order, held.as_whole)
            if why is not None:
                order = order.in_place(why)
            given_up = threading.Event()
            transaction = self._write(order, view, held, given_up, ending)
            over = ending.pop_all()

            def follow(error: WsmError) -> Transaction | Receipt | None:
                if standing is not None and outcome.found_held(error):
                    return replace(standing, seconds=(self._clock.monotonic_ns() - begun_ns) / 1e9)
                return self._follow(order, error, given_up, over)

            return Drive(transaction, over, follow).start()

    def _take_role(self, wait_s: float) -> LockHold:
        """Take the role; a process of the group that only ends an abandoned command is waited for."""
        try:
            return self._access.role.acquire(wait_s)
        except RoleBusyError as busy:
            pid, ranks = busy.context["pid"], self._group.ranks_of(busy.context["pid"])
            if not ranks and pid != self._group.owner_pid:
                raise
        try:
            return self._access.role.acquire(ENDING_S)
        except RoleBusyError as busy:
            command = self._group.view().command
            what = f"which is ending command {command.sequence} ({command.operation.name})"
            named = f"{who(ranks[0])}, {what} whose controller is gone" if ranks else ""
            context = {**busy.context, "doing": named, "waited_s": wait_s + ENDING_S}
            raise RoleBusyError(**context) from None

    def _write(
        self, order: Order, view: View, held: Held, given_up: threading.Event, ending: ExitStack
    ) -> Transaction:
        """Write a command that was admitted, and leave to `ending` what is to be done when it is over."""
        taken = self._engine_words_for(order.operation, held.as_whole)
        with ExitStack() as undo:
            undo.callback(taken.give_back)
            arguments = replace(
                order.arguments,
                before=admission.state_before(self._group, view, held),
                deadline_s=order.deadline_s,
            )
            command = self._group.open(decide.next_command(view, order.operation), arguments)
            undo.pop_all()
        ending.callback(lambda: taken.answer(read_status(self._group).engine_state))
        return Transaction(
            self._group,
            command,
            arguments,
            deadline_s=order.deadline_s,
            settle_s=order.settle_s,
            clock=self._clock,
            given_up=given_up,
            fallback=order.fallback,
        )

    def _follow(
        self, order: Order, error: WsmError, given_up: threading.Event, ending: ExitStack
    ) -> Transaction | None:
        """Begin the in-place update that a hot one falls back to, with the role still held."""
        why = None if given_up.is_set() else fallback.after_it_was_refused(order, error)
        if why is None:
            return None
        order = order.in_place(why)
        view, held = self._admit(order)
        return self._write(order, view, held, given_up, ending)

    def _admit(self, order: Order) -> tuple[View, Held]:
        """Refuse what this group cannot be asked now; return what was read, and what all ranks hold."""
        admission.require_alive(self._group, order.operation)
        view = self._group.view()
        command = decide.next_command(view, order.operation)
        admission.require_equal_plans(self._group, command.epoch)
        held = admission.require_one_state(view, order.operation, order.arguments.tags)
        if order.arguments.partial and not held.serving:
            raise PartialUpdateRefusedError(why=f"every rank is {held.as_whole.name}")
        return view, held

    def _complete_inherited(self, settle_s: float) -> None:
        """Bring a command to its end that another controller left open; the role proves that it is gone."""
        view = self._group.view()
        if inherited(view) is Inheritance.NOTHING or view.command.operation is Operation.NONE:
            return
        Transaction(
            self._group,
            view.command,
            self._group.arguments(view.command) or CommandArguments("its arguments are gone"),
            deadline_s=settle_s,
            settle_s=settle_s,
            clock=self._clock,
        ).complete()

    def _engine_words_for(self, operation: Operation, state: WeightState) -> TakenWords:
        before, directory = WeightState(state.fastdeploy_code), self._access.directory
        if operation.is_hot:
            return leave_words(self._engine_words, before=before, directory=directory)
        asked = WeightState.CLEARING if operation is Operation.CLEAR else WeightState.UPDATING
        return take_words(self._engine_words, before=before, asked=asked, directory=directory)
