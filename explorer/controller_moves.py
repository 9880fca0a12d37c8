"""What the controller, its successor, and the owner of the group can do next.

What each of them stores is asked of :func:`wsm.states.group.advance`, as :mod:`wsm.controller` asks it; here
stand what it knows, what its callers ask for, and what strikes it. One move stores one word. A controller
reads words only, and liveness, which the kernel tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from explorer import admission, invariants
from explorer.errors import broken_by
from explorer.invariants import ATTEMPTS, all_ended, serves
from explorer.scope import Budget, Scope
from explorer.world import (
    BOTH,
    COMMAND_WORD,
    KV_CACHE,
    NOTHING,
    WEIGHTS,
    Alternative,
    Arguments,
    ControllerState,
    PublicState,
    Seen,
    Slot,
    Tags,
    Terms,
    committed_version,
    hold_in_force,
    label_of,
    named_slot,
    pack_controller,
    read_command,
    view_of,
    word_name,
)
from wsm import committed_record
from wsm.states import decide, epochs
from wsm.states.decide import Role
from wsm.states.epochs import Cause
from wsm.states.group import GroupMove, GroupState, GroupTodo, Known, May, Opens, advance, goal_of
from wsm.states.holding import Answer
from wsm.states.vocabulary import After, InFlightPolicy, KVState, OnFailure, Tag, WeightState
from wsm.states.words import CommandWord, CommittedWord, Decider, Operation

#: No decision is written in the place of a stopped controller while a next command can be; a seeded fault
#: lets it come late.
stands_in_without_waiting = False

#: A seeded fault stores the word before the record that it names.
record_before_word = True

#: What a process may be told, and no world changes by that. A command or an epoch beside a controller that
#: drives (OVERTAKEN) is in none: that controller has the role.
CHANGES_NOTHING = {
    GroupTodo.WAIT: "the next look is a move of its own",
    GroupTodo.LOOK: "what was stored is the move, and the next look another one",
    GroupTodo.READ_REPORTS: "a report is there before its rank is PREPARED: the next look reads it",
    GroupTodo.START: "any supervisor may start a process at any time, and each world tries that",
    GroupTodo.NAME: "a person is told whom to end; the end of that process is a strike",
}

_Spends = tuple[Budget, ...]

_NAMED: dict[Tags, str] = {NOTHING: "", BOTH: "", WEIGHTS: ", weights only", KV_CACHE: ", KV cache only"}


class ControllerMoves:
    """Everything that the controller can do in one world, and what can be done to it.

    Parameters
    ----------
    controller : ControllerState
        As it is; moves that change nothing are none.
    others : tuple of PublicState
        The participants. Their words, whether they live and what they reported may be read, nothing else.
    scope : Scope
        What may be asked for, and whether deciding and writing are moves of their own.
    affordable : frozenset of Budget
        What is left to be spent.

    Attributes
    ----------
    found : list of Alternative
        The moves.
    """

    def __init__(
        self,
        controller: ControllerState,
        others: tuple[PublicState, ...],
        scope: Scope,
        affordable: frozenset[Budget],
    ) -> None:
        self.found: list[Alternative] = []
        self._now = controller
        self._others = others
        self._scope = scope
        self._affordable = affordable
        self._committed = CommittedWord.unpack(controller.committed)
        self._view = view_of(controller.command, others, scope.ranks, controller.seen, self._committed)
        self._dead = frozenset(index for index, other in enumerate(others) if not other.alive)
        self._lost = epochs.ended_by(self._view, self._dead)

    def collect(self) -> list[Alternative]:
        """Return everything."""
        try:
            for step in self._steps():
                step()
        except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
            self.found.append(Alternative("looks", b"", (), broken_by(error)))
        self._add_strikes()
        return self.found

    def _steps(self) -> Iterator[Callable[[], None]]:
        """Iterate over what there is to look after."""
        now = self._now
        yield self._hear_who_decides
        if self._dead and not now.gave_up:
            yield self._look_after_the_dead
        if now.frozen:
            yield lambda: self._stand_in(Role.STALLED)
        elif now.left and not now.alive:
            yield from self._without_a_controller()
        elif not now.alive:
            yield self._take_over
        elif now.pending:
            yield lambda: self._stand_in(Role.KEPT)
            yield self._write_pending
        elif not record_before_word and not now.orphaned and self._lacks_its_record():
            yield self._write_late_record
        else:
            yield from self._steps_of_the_living()
        if now.stopped:
            yield self._go_on_after_being_stopped

    def _steps_of_the_living(self) -> Iterator[Callable[[], None]]:
        now = self._now
        if now.driving:
            yield self._drive
        if self._lost and not now.gave_up:
            yield self._raise_epoch
        elif not now.driving and not self._lost and not now.replaces:
            yield self._keep
            yield self._end_lease
            if not now.recovering and not now.left and decide.is_over(self._view):
                yield self._open

    # -- what is asked of the protocol -------------------------------------------------------------

    @cached_property
    def _knowledge(self) -> dict[str, Any]:
        """What every process knows in this world."""
        now, says = self._now, self._now.says
        decides = self._view.command.decider is not Decider.CONTROLLER
        return {
            "verdict": now.verdict if decides else None,
            "agree": self._agree(),
            "leased": says.leased,
            "lease_over": now.lease_over,
            "dead": self._dead,
            "version": label_of(says.version),
            "after": says.after,
            "of_admission": not says.tags,
            "restores": says.restores,
            "served": says.before,
            "committed": label_of(committed_version(now)),
            "hold": admission.known_hold(now),
            "now_ns": admission.NOW_NS,
            "repair_limit": ATTEMPTS,
        }

    def _known(self, may: May, role: Role = Role.OWN, **more: Any) -> Known:
        """Return what a process knows that may write so much; `more`: what differs from all others."""
        limit = ATTEMPTS if may is May.KEEP else 0
        return Known(may, role, restore_limit=limit, **{**self._knowledge, **more})

    def _ask(self, may: May, role: Role = Role.OWN, **more: Any) -> GroupMove:
        """Ask what a process does that drives the command, or one that knows the words alone."""
        now, view = self._now, self._view
        state = GroupState(view.command, failed=now.failed, repaired=now.repaired)
        if may is May.DRIVE and now.alive:
            mine = now.driving and not now.orphaned
            state = replace(state, follows=now.driving, mine=mine, told=now.told, repairs=now.repairs)
        elif may is May.DRIVE:
            state = GroupState.of(view)
        return advance(state, view, self._known(may, role, **more))

    def _look_after_the_dead(self) -> None:
        """The owner reaps a process that has ended before it does anything else, and starts it anew."""
        role = Role.OWN if self._now.alive and not self._now.frozen else Role.FREE
        found = self._ask(May.KEEP, role, replaced=dict.fromkeys(self._dead, Cause.ENDED))
        rule = "a process that has ended is reaped first: it writes no word any more"
        invariants.check_owner(found.todo, GroupTodo.REPLACE, rule)
        for each in () if self._lost else (Role.OWN, Role.FREE):
            todo = self._ask(May.KEEP, each).todo
            invariants.check_owner(todo, GroupTodo.START, "a process that is missing is started anew")

    # -- storing words -----------------------------------------------------------------------------

    def _add(self, label: str, act: Callable[[], ControllerState], spends: _Spends = ()) -> bool:
        """Try a move, and return whether it breaks no rule.

        One that changes nothing, or that cannot be afforded, is no move.
        """
        if not set(spends) <= self._affordable:
            return True
        try:
            after = act()
        except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
            self.found.append(Alternative(label, b"", spends, broken_by(error)))
            return False
        if after != self._now:
            was = self._now.command
            changed = ((COMMAND_WORD, was),) if after.command != was else ()
            self.found.append(Alternative(label, pack_controller(after), spends, "", changed))
        return True

    def _becomes(self, label: str, spends: _Spends = (), **changed: Any) -> None:
        """Add a move that stores no word."""
        self._add(label, lambda: self._now._replace(**changed), spends)

    def _write(
        self, label: str, word: CommandWord, after: ControllerState, says: Arguments, spends: _Spends = ()
    ) -> None:
        """Store arguments and command word, in this move or in the next one."""
        if self._scope.fine:
            decided = after._replace(pending=(word.pack(), says))
            self._add(f"{label} (not stored yet)", lambda: decided, spends)
        else:
            self._add(label, lambda: self._stored(after._replace(says=says), word.pack()), spends)

    def _write_pending(self) -> None:
        """Store the word that it has decided to write."""
        word, says = self._now.pending or (0, self._now.says)
        after = self._now._replace(pending=None, says=says)
        self._add("stores the command word", lambda: self._stored(after, word))

    def _go_on_after_being_stopped(self) -> None:
        """Let a controller that was taken for dead go on."""
        now = self._now
        self._add(
            "that was only stopped stores its command word",
            lambda: self._stored(now._replace(stopped=0), now.stopped),
        )

    def _commit(self, label: str, move: GroupMove, version: int | None = None) -> None:
        """Write the record of what is committed, and in the next move the word that names it."""
        now, word = self._now, move.committed
        if word is None or move.record is None:
            return
        begun = admission.begun_by(now, held=word.held)
        hold = begun if move.record.of_command else hold_in_force(now) if word.held else None
        slot = Slot(word.sequence, now.says.version if version is None else version, word.held, hold)
        if record_before_word and slot not in now.records:
            # One process both drives and ends the epoch here: what it has written for that it does not undo.
            ends_epoch = version is None and now.driving and self._lost and not now.gave_up
            if not (ends_epoch and word.sequence in [each.sequence for each in now.records]):
                self._add(f"{label}: the record", lambda: self._recorded(slot))
        else:
            self._becomes(label, committed=word.pack())

    def _recorded(self, slot: Slot) -> ControllerState:
        """Return what is there once a record was written."""
        slots = list(self._now.records)
        slots[committed_record.place_to_write(self._committed, [each.record for each in slots])] = slot
        return self._now._replace(records=(slots[0], slots[1]))

    def _lacks_its_record(self) -> bool:
        return self._committed.version_id is not None and named_slot(self._now) is None

    def _write_late_record(self) -> None:
        """Write the record after its word, as a seeded fault has it."""
        word = self._committed
        hold = admission.begun_by(self._now, held=word.held)
        slot = Slot(word.sequence, self._now.says.version, word.held, hold)
        self._add("writes the record", lambda: self._recorded(slot))

    def _stored(self, after: ControllerState, word: int) -> ControllerState:
        invariants.check_command(self._now, word)
        excused = bool(self._lost) or not self._agree()
        invariants.check_decider(self._now, word, excused=excused)
        after, says = after._replace(command=word), after.says
        operation = read_command(word).operation
        if not operation.is_commit or read_command(self._now.command).operation.is_commit:
            return after
        whole = all(each.serving for each in decide.resident_on_each(self._view)) or bool(says.tags)
        unheard = after.orphaned and after.verdict is not True  # a caller that decides may come back for that
        invariants.check_decided_admission(says.after, says.tags, unheard=unheard, whole=whole)
        closed = after.closed if says.after is After.AS_BEFORE else says.after is After.HELD
        stands = (after.stands or says.hold) if closed else None
        after = after._replace(closed=closed, stands=stands, lapsed=after.lapsed and closed)
        if not says.tags:
            return after
        lacking = any(
            status.kv == KVState.CLEARED or status.weights == WeightState.CLEARED
            for status in self._view.statuses
        )
        return after._replace(owed=0 if lacking else says.version)

    def _owed(self) -> int:
        """Return the version that the group must serve if its epoch ends now, whatever is remembered."""
        view, now = self._view, self._now
        owes = now.says.restores or (now.says.owing and not serves(view))
        restoring_still = owes and view.command.operation in (Operation.ABORT, Operation.CLEAR)
        dropped = view.command.operation is Operation.ABORT and not serves(view)  # undoing a hold failed
        same_as_before = view.command.operation is Operation.NONE or not (now.says.tags or dropped)
        if same_as_before or restoring_still or not all_ended(view):
            return now.owed
        return committed_version(now) if serves(view) else 0

    # -- a command ---------------------------------------------------------------------------------

    def _open(self) -> None:
        after = self._now._replace(failed=0)
        owed = epochs.unrestored(self._view)
        if self._scope.owners:
            self._add("names a hold", self._named)
        for operation in self._scope.operations:
            if operation is Operation.HOLD:
                self._open_hold(after, owed)
            elif operation is Operation.RELEASE:
                for how, answer in admission.answers_to_release(self._now, self._scope, self._view):
                    if answer is Answer.COMMAND:
                        self._open_of_admission(f"opens{how}", None, after, owed)
            else:
                for tags in (
                    (BOTH, WEIGHTS, KV_CACHE) if self._scope.halves and not operation.is_hot else (BOTH,)
                ):
                    self._open_about(operation, tags, after, owed)

    def _open_about(self, operation: Operation, tags: Tags, after: ControllerState, owed: bool) -> None:
        """Open a clear or an update, in every way in which a caller may ask for it."""
        resident = decide.resident_for(self._view, operation, frozenset(tags))
        if resident is None:
            return
        held, scope = self._view.committed.held, self._scope
        before = decide.state_before(resident, owed=owed)
        plain, opens = Arguments(0, before is WeightState.NORMAL, tags), Opens(operation, before=before)
        asked = [
            (
                plain._replace(in_flight=policy, names_policy=named, leased=leased),
                opens._replace(decider=decider),
            )
            for policy, named in admission.policies_asked(self._now, scope, held=held)
            for decider, leased in admission.deciders_asked(scope, one=operation is Operation.CLEAR)
        ]
        if scope.afters and operation is not Operation.CLEAR:
            leaves = After.SERVE if held else After.HELD
            asked.append((plain._replace(after=leaves, hold=None if held else Terms(1)), opens))
        if scope.restores and operation is Operation.UPDATE:
            owing, restored = invariants.all_serve(self._view), OnFailure.RESTORE
            asked += [
                (says._replace(owing=owing), opens._replace(on_failure=restored)) for says, opens in asked
            ]
        lacks_kv_only = resident.missing == frozenset(KV_CACHE)
        if scope.halves and operation is Operation.UPDATE and tags == BOTH and lacks_kv_only:
            asked.append((plain._replace(version=committed_version(self._now)), opens))
        for says, wanted in asked:
            self._give("opens", self._ask(May.DRIVE, wanted=wanted), says, (Budget.COMMANDS,), after=after)

    def _named(self) -> ControllerState:
        admission.check_ids(self._now, held=self._view.committed.held)
        return self._now

    def _open_hold(self, after: ControllerState, owed: bool) -> None:
        """Open a hold, or renew the lease of the one that there is, as a caller may ask."""
        for terms in admission.holds_asked(self._now, self._scope):
            answer = admission.answer_to_hold(self._now, terms, held=self._view.committed.held)
            if answer is Answer.RENEW:
                self._becomes("renews the lease of the hold", (Budget.COMMANDS,), lapsed=False)
            elif answer is Answer.COMMAND:
                numbered = after._replace(holds=terms.number if self._scope.owners else 0)
                self._open_of_admission("opens", terms, numbered, owed)

    def _open_of_admission(
        self,
        verb: str,
        hold: Terms | None,
        after: ControllerState,
        owed: bool,
        spends: _Spends = (Budget.COMMANDS,),
    ) -> None:
        """Open a hold, or a release."""
        before, waits = decide.before_admission(decide.resident_on_each(self._view), owed=owed)
        ends = InFlightPolicy.KEEP if hold is None or hold.keeps else InFlightPolicy.ABORT
        says = Arguments(
            committed_version(self._now),
            before is WeightState.NORMAL,
            NOTHING,
            restores=waits,
            after=After.SERVE if hold is None else After.HELD,
            hold=hold,
            in_flight=ends,
            names_policy=True,
        )
        operation = Operation.RELEASE if hold is None else Operation.HOLD
        # What has failed to be restored is counted on: such a command takes nothing away.
        failed = after._replace(failed=self._now.failed)
        for decider, leased in admission.deciders_asked(self._scope, one=not spends):
            wanted = Opens(operation, decider, before, waits)
            self._give(
                verb, self._ask(May.DRIVE, wanted=wanted), says._replace(leased=leased), spends, after=failed
            )

    def _end_lease(self) -> None:
        """See that the lease of the hold has run out; with the role read it again, and release the group."""
        now = self._now
        if self._view.committed.held:
            self._becomes("lets the lease of the hold run out", (Budget.LEASES,), lapsed=True)
        if not now.saw_lapse:
            if now.lapsed and self._ask(May.END_LEASES, Role.FREE).todo is GroupTodo.TAKE_ROLE:
                self._becomes("sees that the lease has run out", saw_lapse=True)
            return
        if self._ask(May.END_LEASES).arguments is None and admission.lease_is_read_again:
            self._becomes("reads the lease again, and leaves it", saw_lapse=False)
        elif self._add("ends the lease", self._lease_ended):
            self._open_of_admission("ends the lease by", None, now._replace(saw_lapse=False), False, ())

    def _lease_ended(self) -> ControllerState:
        admission.check_lease_end(self._now)
        return self._now

    def _brings(self, word: CommandWord, tags: Tags) -> int:
        """Return the version that a command names; a half that is not loaded keeps what was committed."""
        if word.operation is not Operation.CLEAR and Tag.WEIGHTS not in tags:
            return committed_version(self._now)
        return 2 * word.sequence + 100 * ((word.epoch - 1) % 2)  # no other command brings it, or the next one

    def _give(
        self,
        verb: str,
        move: GroupMove,
        says: Arguments,
        spends: _Spends = (),
        *,
        after: ControllerState | None = None,
    ) -> None:
        """Store a command that is opened."""
        word, opens = move.command, move.arguments
        if word is None or opens is None:
            return
        arguments_lie_there = self._now.spoiled
        if arguments_lie_there:
            word = word._replace(sequence=word.sequence + 2)
        operation = word.operation
        says = says._replace(
            version=says.version or self._brings(word, says.tags),
            clears_half=operation is Operation.CLEAR and says.tags != BOTH,
        )
        driving = (after or self._now)._replace(
            driving=True,
            spoiled=False,
            recovering=False,
            orphaned=False,
            owed=self._owed(),
            failed=move.state.failed,
            repairs=move.state.repairs,
            verdict=None,
            told=False,
            lease_over=False,
        )
        named = ""
        if opens.decider is not Decider.CONTROLLER:
            named = f", decided by {'a lease' if says.leased else opens.decider.name}"
        if operation is not Operation.CLEAR and Tag.WEIGHTS in says.tags:
            named = f" of version {says.version}{named}"
        named += _NAMED[says.tags]
        if says.tags and says.after is not After.AS_BEFORE:
            named += f", then {says.after.value}"
        named += ", else the version before" if opens.on_failure is OnFailure.RESTORE else ""
        named += admission.named(says, self._scope)
        self._write(f"{verb} {operation.name} {word.sequence}{named}", word, driving, says, spends)
        if not arguments_lie_there:
            self._add(
                f"dies between the arguments and the word of {operation.name} {word.sequence}",
                lambda: controller_killed(self._now)._replace(spoiled=True),
                (Budget.CONTROLLER_CRASHES,),
            )

    def _drive(self) -> None:
        now = self._now
        move = self._ask(May.DRIVE)
        hangs = any(other.hung for other in self._others)  # then the deadline passes, if nothing else happens
        late: _Spends = () if hangs else (Budget.GIVE_UPS,)
        self._decide(move, "decides {}")
        for known, why in (
            ({"expired": True}, ""),
            ({"expired": True, "agree": None}, ", and a report lacks"),
        ):
            given_up = self._ask(May.DRIVE, **known)
            if given_up.command not in (None, move.command):
                self._decide(given_up, f"decides {{}}, because its deadline passed{why}", late)
        self._ask(May.DRIVE, agree=None)
        if self._ask(May.DRIVE, stuck=True).todo is GroupTodo.UNSETTLED:
            unsettled = controller_killed(now)._replace(alive=True)
            self._add("tells its caller that ranks do not answer", lambda: unsettled, late)
        if move.committed is not None:
            self._commit("stores the committed version", move)
        elif move.todo is GroupTodo.END:
            failed, repaired = move.state.failed, move.state.repaired
            self._becomes(
                "sees that the command is over",
                driving=False,
                repairs=False,
                failed=failed,
                repaired=repaired,
            )
        elif move.todo is GroupTodo.TELL_PREPARED:
            self._becomes("tells its caller that all are PREPARED", told=True)
        elif move.todo is GroupTodo.HELD and not now.orphaned:
            away = controller_killed(now)._replace(left=True)
            self._add("gives the role back, and a lease holds the decision", lambda: away)

    def _decide(self, move: GroupMove, label: str, spends: _Spends = ()) -> bool:
        """Store a decision, if the move is one; of the version that the participants say they prepared."""
        word = move.command
        if word is None or not word.operation.is_decision:
            return False
        loads = word.operation.is_commit and Tag.WEIGHTS in self._now.says.tags
        says = self._now.says._replace(version=self._others[0].loaded) if loads else self._now.says
        self._write(label.format(word.operation.name), word, self._now, says, spends)
        return True

    def _hear_who_decides(self) -> None:
        for label, after in admission.verdicts(self._now, self._view, agree=self._agree()):
            self._becomes(label, **after._asdict())

    def _agree(self) -> bool:
        # Only ranks load; what a helper says of weights counts for nothing.
        return (
            not self._now.says.tags or len({other.loaded for other in self._others[: self._scope.ranks]}) == 1
        )

    # -- where no controller goes on ---------------------------------------------------------------

    def _take_over(self) -> None:
        """The kernel's lock proves that the one before is dead."""
        move = self._ask(May.DRIVE)
        if move.todo is GroupTodo.HELD:
            self._becomes("is started anew and told Busy", left=True)
            return
        follows, decided = move.state.follows, self._view.command.operation.is_decision
        what = "a command to complete" if decided else "a command to decide"
        label = f"is started anew and finds {what if follows else 'nothing open'}"
        self._becomes(label, alive=True, driving=follows)

    def _without_a_controller(self) -> Iterator[Callable[[], None]]:
        """Iterate over what a rank or the group's owner does where no controller will come."""
        now = self._now
        if now.pending:
            yield self._write_pending
        elif now.ending:
            yield self._end_with_the_role
        else:
            stands_in = self._ask(May.STAND_IN, Role.FREE).todo is GroupTodo.TAKE_ROLE
            keeps = self._ask(May.KEEP, Role.FREE).todo is GroupTodo.TAKE_ROLE
            if keeps and not now.gave_up and (self._lost or not stands_in):
                self._becomes("is gone; the owner of the group takes the role", alive=True)
            elif stands_in:
                self._becomes("is gone; a process of the group takes the role", ending=True)
        if now.ending:
            dead = controller_killed(now)
            self._add("that ends a command dies, with the role", lambda: dead, (Budget.CONTROLLER_CRASHES,))

    def _end_with_the_role(self) -> None:
        move = self._ask(May.STAND_IN)
        if not self._lost and not decide.is_over(self._view):
            invariants.check_kept(self._ask(May.KEEP), move)
        if self._decide(move, "is gone; a process of the group decides {}"):
            return
        if move.committed is not None:
            self._commit("is gone; a process of the group stores the committed version", move)
            return
        what = "finds a decision held" if move.todo is GroupTodo.HELD else "gives the role back"
        self._becomes(f"is gone; a process of the group {what}", ending=False)

    def _stand_in(self, role: Role) -> None:
        """Write the one decision that is left in the place of a controller that has the role."""
        if role is Role.STALLED:
            self._ask(May.STAND_IN, role)
        word, now = self._ask(May.STAND_IN, role, expired=True).command, self._now
        if word is None:
            return
        if stands_in_without_waiting:
            self._becomes("is stopped; a rank is about to abort in its place", stopped=word.pack())
        else:
            self._add("is stopped; a rank aborts in its place", lambda: self._stored(now, word.pack()))

    # -- a rank is gone, or FAULTED ----------------------------------------------------------------

    def _raise_epoch(self) -> None:
        """Decide what is open, store what the group must hold again, then begin the epoch."""
        view, now = self._view, self._now
        alive = now.driving or not now.left
        self._becomes("gives the group up", (Budget.GIVE_UPS,), gave_up=True, alive=alive)
        invariants.check_leaving(self._ask(May.KEEP, leaving=True))
        move = self._ask(May.KEEP)
        goal = goal_of(view, self._known(May.KEEP))
        if self._decide(move, "decides {} before the epoch ends"):
            return
        if move.committed is not None:
            said = "nothing" if goal is None else f"version {goal}"
            self._commit(f"stores that the group must serve {said} again", move, int(goal or 0))
            return
        owed, label = self._owed(), f"raises the epoch: {self._lost} gone or broken"

        def checked() -> ControllerState:
            invariants.check_goal(int(goal or 0), owed)
            return now

        if self._add(label, checked) and move.command is not None:
            after = now._replace(
                driving=False,
                recovering=True,
                owed=owed,
                failed=move.state.failed,
                repaired=move.state.repaired,
                repairs=False,
                replaces=False,
            )
            self._write(label, move.command, after, now.says._replace(clears_half=False))

    def _keep(self) -> None:
        """Repair a FAULTED rank, then load what the group must serve again."""
        now, move = self._now, self._ask(May.KEEP)
        if move.todo is GroupTodo.REPLACE and not now.gave_up:
            self._add("ends the ranks whose teardown fails", self._replacing)
        elif move.todo is GroupTodo.GIVE_ROLE_BACK:
            self._becomes("has nothing to restore", recovering=False)
        opens = move.arguments
        if opens is None or opens.operation is Operation.RELEASE:
            return
        says = Arguments(0, opens.before is WeightState.NORMAL, restores=opens.restores)
        if opens.operation is Operation.UPDATE:
            self._add("restores once more", self._checked_restore)
            self._give("restores", move, says._replace(version=committed_version(now)))
        elif not now.gave_up:
            self._add("repairs once more", lambda: self._checked(now.repaired))
            self._give("repairs by", move, says)

    def _checked_restore(self) -> ControllerState:
        invariants.check_restore(committed_version(self._now), self._owed(), self._view)
        return self._checked(self._now.failed)

    def _replacing(self) -> ControllerState:
        invariants.check_replaced(self._now.repaired, ATTEMPTS)
        return self._now._replace(replaces=True)

    def _checked(self, failed: int) -> ControllerState:
        invariants.check_attempts(failed, ATTEMPTS)
        return self._now

    # -- strikes -----------------------------------------------------------------------------------

    def _add_strikes(self) -> None:
        """Add that it sees a hidden word at last, is stopped or goes on, and dies."""
        now = self._now
        if now.seen.word:
            self._becomes(f"sees {word_name(now.seen.word)} as it is", seen=Seen())
        if not (now.alive and (now.driving or now.pending or self._lost)):
            return
        label = "goes on" if now.frozen else "is stopped, with the role"
        self._becomes(label, (Budget.CONTROLLER_STOPS,), frozen=not now.frozen)
        gone = controller_killed(now)
        self._add("dies, and none follows", lambda: gone._replace(left=True), (Budget.CONTROLLER_LOSSES,))
        self._add("dies", lambda: gone, (Budget.CONTROLLER_CRASHES,))


def controller_killed(controller: ControllerState) -> ControllerState:
    """Return what is left of a controller whose process died: the words, and what the owner remembers."""
    return controller._replace(
        verdict=None,
        alive=False,
        orphaned=True,
        driving=False,
        recovering=False,
        ending=False,
        frozen=False,
        repairs=False,
        seen=Seen(),
        pending=None,
    )
