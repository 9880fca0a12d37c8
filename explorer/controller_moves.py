"""What the controller, its successor, and the owner of the group can do next.

As :mod:`wsm.controller` does it: a command is opened when the last one is over, decided once, and driven
until it is over; a successor takes over what a dead controller left. When a rank is gone the owner decides
what is open, stores what the group must hold, raises the epoch, and restores the group by an ordinary update,
again while that fails; a FAULTED rank is cleared again, and replaced if that does not help. Which word is due
is asked of the pure functions of :mod:`wsm.states`; one move stores one word. A controller reads words only,
and liveness, which the kernel tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from explorer import admission, held_moves, invariants
from explorer.admission import Arguments, Terms
from explorer.errors import broken_by
from explorer.held_moves import NOTHING_PENDING, NOTHING_SAID, controller_killed, deciders_asked
from explorer.invariants import ATTEMPTS, all_ended, serves
from explorer.scope import Budget, Scope
from explorer.world import (
    AFTERS,
    BOTH,
    COMMAND_WORD,
    KV_CACHE,
    NOTHING,
    TAGS,
    WEIGHTS,
    Alternative,
    ControllerState,
    PublicState,
    Seen,
    Slot,
    committed_version,
    hold_byte_of,
    label_of,
    pack_controller,
    read_command,
    view_of,
    word_name,
)
from wsm import committed_record
from wsm.states import decide, epochs, holding
from wsm.states.decide import Duty, Inheritance, Role
from wsm.states.epochs import Attempt
from wsm.states.errors import CommandOpenError
from wsm.states.holding import Answer, LeaseEnd
from wsm.states.vocabulary import After, InFlightPolicy, KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Decider, Operation

#: The kernel's lock makes this false; a seeded fault lets a successor believe a timeout instead.
takes_over_from_the_living = False

#: Nor is a decision written in the place of a stopped controller while a next command can be; a seeded fault
#: lets it come late.
stands_in_without_waiting = False

#: A seeded fault stores the word before the record that it names.
record_before_word = True


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
        self._view = view_of(controller, others, scope.ranks)
        dead = [index for index, other in enumerate(others) if not other.alive]
        self._lost = epochs.ended_by(self._view, dead)

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
            yield self._repair
            yield self._restore
            yield self._end_lease
            if not now.recovering and not now.left:
                yield self._open

    # -- storing words -----------------------------------------------------------------------------

    def _add(self, label: str, act: Callable[[], ControllerState], spends: tuple[Budget, ...] = ()) -> None:
        """Try a move. One that changes nothing, or that cannot be afforded, is no move."""
        if not set(spends) <= self._affordable:
            return
        try:
            after = act()
        except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
            self.found.append(Alternative(label, b"", spends, broken_by(error)))
            return
        if after != self._now:
            was = self._now.command
            changed = ((COMMAND_WORD, was),) if after.command != was else ()
            self.found.append(Alternative(label, pack_controller(after), spends, "", changed))

    def _write(
        self,
        label: str,
        word: CommandWord,
        spends: tuple[Budget, ...] = (),
        *,
        after: ControllerState | None = None,
        says: Arguments | None = None,
    ) -> None:
        """Store a command word, in this move or in the next one; `says`: its arguments, if they are new."""
        after = after or self._now
        if says is None:
            says = Arguments(
                after.version,
                after.before,
                after.tags,
                after.restores,
                AFTERS[after.after],
                hold=after.hold,
                policy=after.policy,
            )
        version = says.version or 0
        if not self._scope.fine:
            told = after._replace(
                before=says.before,
                tags=says.tags,
                restores=says.restores,
                after=AFTERS.index(says.after),
                hold=says.hold,
                policy=says.policy,
            )
            self._add(label, lambda: self._stored(told, word.pack(), version), spends)
            return
        decided = after._replace(
            pending=word.pack(),
            pending_version=version,
            pending_before=says.before,
            pending_tags=says.tags,
            pending_restores=says.restores,
            pending_after=AFTERS.index(says.after),
            pending_hold=says.hold,
            pending_policy=says.policy,
        )
        self._add(f"{label} (not stored yet)", lambda: decided, spends)

    def _write_pending(self) -> None:
        """Store the word that it has decided to write."""
        now = self._now
        after = now._replace(
            before=now.pending_before,
            tags=now.pending_tags,
            restores=now.pending_restores,
            after=now.pending_after,
            hold=now.pending_hold,
            policy=now.pending_policy,
            **NOTHING_PENDING,
        )
        self._add("stores the command word", lambda: self._stored(after, now.pending, now.pending_version))

    def _go_on_after_being_stopped(self) -> None:
        """Let a controller that was taken for dead go on."""
        now = self._now
        self._add(
            "that was only stopped stores its command word",
            lambda: self._stored(now._replace(stopped=0), now.stopped, now.version),
        )

    def _begun(self, word: CommittedWord) -> int:
        return admission.begun_by(self._now, held=word.held)

    def _held_after(self) -> bool:
        return holding.held_after(AFTERS[self._now.after], held=self._view.committed.held)

    def _commit(self, label: str, word: CommittedWord, version: int, hold: int) -> None:
        """Write the record of what is committed, and in the next move the word that names it."""
        now = self._now
        slot = Slot(word.sequence, version, word.held, hold)
        if record_before_word and slot not in now.records:
            self._add(f"{label}: the record", lambda: self._recorded(slot))
        else:
            self._add(label, lambda: now._replace(committed=word.pack()))

    def _recorded(self, slot: Slot) -> ControllerState:
        """Return what is there once a record was written."""
        now = self._now
        word, slots = CommittedWord.unpack(now.committed), list(now.records)
        slots[committed_record.place_to_write(word, [each.record for each in slots])] = slot
        return now._replace(records=(slots[0], slots[1]))

    def _lacks_its_record(self) -> bool:
        word = CommittedWord.unpack(self._now.committed)
        there = committed_record.named_by(word, [slot.record for slot in self._now.records])
        return word.version_id is not None and there is None

    def _write_late_record(self) -> None:
        """Write the record after its word, as a seeded fault has it."""
        word = CommittedWord.unpack(self._now.committed)
        hold = admission.begun_by(self._now, held=word.held)
        slot = Slot(word.sequence, self._now.version, word.held, hold)
        self._add("writes the record", lambda: self._recorded(slot))

    def _stored(self, after: ControllerState, word: int, version: int) -> ControllerState:
        invariants.check_command(self._now, word)
        excused = bool(self._lost) or not self._agree()
        invariants.check_decider(self._now, word, excused=excused)
        after = after._replace(command=word, version=version)
        operation = read_command(word).operation
        if not operation.is_decision:
            clears_half = operation is Operation.CLEAR and after.tags != BOTH
            after = after._replace(clears_half=clears_half)
        if not operation.is_commit or read_command(self._now.command).operation.is_commit:
            return after
        leaves = AFTERS[after.after]
        whole = all(each.serving for each in decide.resident_on_each(self._view)) or bool(after.tags)
        unheard = after.orphaned and not after.says_commit  # a caller that decides may come back for that
        invariants.check_decided_admission(leaves, after.tags, unheard=unheard, whole=whole)
        closed = after.closed if leaves is After.AS_BEFORE else leaves is After.HELD
        stands = (after.stands or after.hold) if closed else 0
        after = after._replace(closed=closed, stands=stands, lapsed=after.lapsed and closed)
        if not after.tags:
            return after
        lacking = any(
            status.kv == KVState.CLEARED or status.weights == WeightState.CLEARED
            for status in self._view.statuses
        )
        return after._replace(owed=0 if lacking else version)

    def _owed(self) -> int:
        """Return the version that the group must serve if its epoch ends now, whatever is remembered."""
        view, now = self._view, self._now
        restoring_still = now.restores and view.command.operation in (Operation.ABORT, Operation.CLEAR)
        dropped = view.command.operation is Operation.ABORT and not serves(view)  # undoing a hold failed
        same_as_before = view.command.operation is Operation.NONE or not (now.tags or dropped)
        if same_as_before or restoring_still or not all_ended(view):
            return now.owed
        return (committed_version(now) or 0) if serves(view) else 0

    # -- a command ---------------------------------------------------------------------------------

    def _open(self) -> None:
        after = self._now._replace(failed=0)
        owed = self._unrestored()
        if self._scope.owners:
            self._add("names a hold", self._named)
        for operation in self._scope.operations:
            if operation is Operation.HOLD:
                self._open_hold(after, owed)
            elif operation is Operation.RELEASE:
                self._open_release(after, owed)
            else:
                about = (BOTH, WEIGHTS, KV_CACHE) if self._scope.halves and not operation.is_hot else (BOTH,)
                for tags in about:
                    self._open_about(operation, tags, after, owed)

    def _open_about(self, operation: Operation, tags: int, after: ControllerState, owed: bool) -> None:
        """Open a clear or an update, in every way in which a caller may ask for it."""
        resident = decide.resident_for(self._view, operation, TAGS[tags])
        if resident is None:
            return
        held, scope = self._view.committed.held, self._scope
        before = decide.state_before(resident, owed=owed) is WeightState.NORMAL
        plain = Arguments(None, before, tags)
        asked = [
            replace(plain, policy=policy, decider=decider, leased=leased)
            for policy in admission.policies_asked(self._now, scope, held=held)
            for decider, leased in deciders_asked(scope, one=operation is Operation.CLEAR)
        ]
        if scope.afters and operation is not Operation.CLEAR:
            leaves = After.SERVE if held else After.HELD
            asked.append(replace(plain, after=leaves, hold=0 if held else Terms(1).pack()))
        lacks_kv_only = resident.missing == TAGS[KV_CACHE]
        if scope.halves and operation is Operation.UPDATE and tags == BOTH and lacks_kv_only:
            asked.append(replace(plain, version=committed_version(self._now)))
        for says in asked:
            self._open_with("opens", operation, says, (Budget.COMMANDS,), after=after)

    def _named(self) -> ControllerState:
        admission.check_ids(self._now, held=self._view.committed.held)
        return self._now

    def _open_hold(self, after: ControllerState, owed: bool) -> None:
        """Open a hold, or renew the lease of the one that there is, as a caller may ask."""
        now, view, spends = self._now, self._view, (Budget.COMMANDS,)
        for terms in admission.holds_asked(now, self._scope):
            answer = admission.answer_to_hold(now, terms, held=view.committed.held)
            if answer is Answer.RENEW and decide.is_over(view):
                self._add("renews the lease of the hold", lambda: now._replace(lapsed=False), spends)
            elif answer is Answer.COMMAND:
                numbered = after._replace(holds=terms.number if self._scope.owners else 0)
                self._open_of_admission(Operation.HOLD, numbered, owed, hold=terms, spends=spends)

    def _open_release(self, after: ControllerState, owed: bool) -> None:
        """Open a release, as a caller may ask."""
        for how, answer in admission.answers_to_release(self._now, self._scope, self._view):
            if answer is Answer.COMMAND:
                verb, spends = f"opens{how}", (Budget.COMMANDS,)
                self._open_of_admission(Operation.RELEASE, after, owed, verb=verb, spends=spends)

    def _open_of_admission(
        self,
        operation: Operation,
        after: ControllerState,
        owed: bool,
        *,
        verb: str = "opens",
        hold: Terms | None = None,
        spends: tuple[Budget, ...] = (),
    ) -> None:
        before, waits = decide.before_admission(decide.resident_on_each(self._view), owed=owed)
        ends = admission.POLICIES.index(InFlightPolicy.KEEP)
        if hold is not None and not hold.keeps:
            ends = admission.POLICIES.index(InFlightPolicy.ABORT)
        says = Arguments(
            committed_version(self._now) or 0,
            before is WeightState.NORMAL,
            NOTHING,
            restores=waits,
            after=After.SERVE if hold is None else After.HELD,
            hold=0 if hold is None else hold.pack(),
            policy=ends + admission.NAMED,
        )
        # What has failed to be restored is counted on: such a command takes nothing away.
        failed = after._replace(failed=self._now.failed)
        for decider, leased in deciders_asked(self._scope, one=not spends):  # a lease's end asks no caller
            held_by = replace(says, decider=decider, leased=leased)
            self._open_with(verb, operation, held_by, spends, after=failed)

    def _lease_end(self) -> LeaseEnd:
        return admission.lease_end(self._now, self._view, owed=self._unrestored())

    def _end_lease(self) -> None:
        """See that the lease of the hold has run out; with the role read it again, and release the group."""
        now, due = self._now, self._lease_end()
        if self._view.committed.held and not now.lapsed:
            expired = now._replace(lapsed=True)
            self._add("lets the lease of the hold run out", lambda: expired, (Budget.LEASES,))
        if not now.saw_lapse:
            if due is LeaseEnd.RELEASE:
                self._add("sees that the lease has run out", lambda: now._replace(saw_lapse=True))
            return
        seen = now._replace(saw_lapse=False)
        if due is not LeaseEnd.RELEASE and admission.lease_is_read_again:
            self._add("reads the lease again, and leaves it", lambda: seen)
            return
        self._add("ends the lease", self._lease_ended)
        if not self.found or self.found[-1].after:
            self._open_of_admission(Operation.RELEASE, seen, False, verb="ends the lease by")

    def _lease_ended(self) -> ControllerState:
        admission.check_lease_end(self._now)
        return self._now

    def _unrestored(self) -> bool:
        return epochs.unrestored(self._view)

    def _brings(self, word: CommandWord, tags: int) -> int:
        """Return the version that a command names; a half that is not loaded keeps what was committed."""
        if word.operation is not Operation.CLEAR and not tags & WEIGHTS:
            return committed_version(self._now) or 0
        return 2 * word.sequence + 100 * ((word.epoch - 1) % 2)  # no other command brings it, or the next one

    def _open_with(
        self,
        verb: str,
        operation: Operation,
        says: Arguments,
        spends: tuple[Budget, ...] = (),
        *,
        after: ControllerState | None = None,
    ) -> None:
        try:
            word = decide.next_command(self._view, operation)
        except CommandOpenError:
            return
        arguments_lie_there = self._now.spoiled
        if arguments_lie_there:
            word = word._replace(sequence=word.sequence + 2)
        if says.version is None:
            says = replace(says, version=self._brings(word, says.tags))
        word = word._replace(decider=says.decider, owes=says.restores)
        driving = (after or self._now)._replace(
            driving=True,
            spoiled=False,
            recovering=False,
            orphaned=False,
            owed=self._owed(),
            leased=says.leased,
            **NOTHING_SAID,
        )
        named = ""
        if says.decider is not Decider.CONTROLLER:
            named = f", decided by {'a lease' if says.leased else says.decider.name}"
        if operation is not Operation.CLEAR and says.tags & WEIGHTS:
            named = f" of version {says.version}{named}"
        named += {NOTHING: "", BOTH: "", WEIGHTS: ", weights only", KV_CACHE: ", KV cache only"}[says.tags]
        if says.tags and says.after is not After.AS_BEFORE:
            named += f", then {says.after.value}"
        named += admission.named(says, self._scope)
        self._write(f"{verb} {operation.name} {word.sequence}{named}", word, spends, after=driving, says=says)
        if not arguments_lie_there:
            self._add(
                f"dies between the arguments and the word of {operation.name} {word.sequence}",
                lambda: controller_killed(self._now)._replace(spoiled=True),
                (Budget.CONTROLLER_CRASHES,),
            )

    def _drive(self) -> None:
        view, now = self._view, self._now
        # A successor that found a command undecided looks again: a lease may hold it since.
        gives_up = (now.gives_up or now.lease_over) and not decide.is_held(view, leased=self._leased)
        due = self._decision(give_up=gives_up or bool(self._lost))
        given_up = due if decide.is_held(view, leased=self._leased) else self._decision(give_up=True)
        hangs = any(other.hung for other in self._others)  # then the deadline passes, if nothing else happens
        late: tuple[Budget, ...] = () if hangs else (Budget.GIVE_UPS,)
        for word, spends, why in ((due, (), ""), (given_up, late, ", because its deadline passed")):
            if word is not None and (not why or word is not due):
                label = f"decides {word.name}{why}"
                after = now._replace(version=self._version(word))
                self._write(label, decide.decided(view, word), spends, after=after)
        if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
            following = decide.committed(view, label_of(now.version), held=self._held_after())
            self._commit("stores the committed version", following, now.version, self._begun(following))
        if decide.is_over(view):
            self._add("sees that the command is over", self._over)

    @property
    def _leased(self) -> bool:
        return self._now.leased and not self._now.lease_over

    def _decision(self, *, give_up: bool) -> Operation | None:
        now, agree = self._now, self._agree()
        if self._view.command.decider is Decider.CONTROLLER:
            return decide.decision(self._view, agree=agree, give_up=give_up)
        verdict = True if now.says_commit else False if now.says_abort else None
        return decide.decision(self._view, agree=agree, give_up=give_up, verdict=verdict)

    def _hear_who_decides(self) -> None:
        for label, act in held_moves.of(self._now, self._view, agree=self._agree()):
            self._add(label, act)

    def _over(self) -> ControllerState:
        """Return what is remembered; only an attempt that fails though no rank is gone counts."""
        now, fails = self._now, self._view.command.operation is Operation.ABORT and not self._lost
        failed, repaired = now.failed, now.repaired
        if not now.tags:
            pass  # a hold or a release says nothing about what is owed
        elif now.repairs:
            repaired += fails
        else:
            failed = failed + 1 if now.restores and fails else 0
        if not epochs.faulted(self._view):
            repaired = 0
        return now._replace(driving=False, gives_up=False, failed=failed, repaired=repaired, repairs=False)

    def _version(self, decision: Operation) -> int:
        """Return the version that is decided about: the one that the participants say they prepared."""
        loads = decision.is_commit and self._now.tags & WEIGHTS
        return self._others[0].loaded if loads else self._now.version

    def _agree(self) -> bool:
        # Only ranks load; what a helper says of weights counts for nothing.
        return not self._now.tags or len({other.loaded for other in self._others[: self._scope.ranks]}) == 1

    # -- where no controller goes on ---------------------------------------------------------------

    def _take_over(self) -> None:
        """The kernel's lock proves that the one before is dead."""
        found = decide.inherited(self._view, leased=True) if self._leased else decide.inherited(self._view)
        if found is Inheritance.HELD and self._leased:
            self._add("is started anew and told Busy", lambda: self._now._replace(left=True))
            return
        nothing = found is Inheritance.NOTHING or self._view.command.operation is Operation.NONE
        gives_up = not nothing and found is Inheritance.DECIDE
        self._add(
            f"is started anew and finds {'nothing open' if nothing else f'a command to {found.value}'}",
            lambda: self._now._replace(alive=True, driving=not nothing, gives_up=gives_up),
        )

    def _without_a_controller(self) -> Iterator[Callable[[], None]]:
        """Iterate over what a rank or the group's owner does where no controller will come."""
        now = self._now
        if now.pending:
            yield self._write_pending
        elif now.ending:
            yield self._end_with_the_role
        elif (
            self._lost
            or self._owes()
            or self._lease_end() is LeaseEnd.RELEASE
            or self._next_repair() in (Attempt.MAKE, Attempt.GIVE_UP)
        ) and not now.gave_up:
            yield lambda: self._add(
                "is gone; the owner of the group takes the role", lambda: now._replace(alive=True)
            )
        elif self._duty_without_a_controller() is Duty.TAKE_ROLE:
            yield lambda: self._add(
                "is gone; a process of the group takes the role", lambda: now._replace(ending=True)
            )
        if now.ending:
            dead = controller_killed(now)
            self._add("that ends a command dies, with the role", lambda: dead, (Budget.CONTROLLER_CRASHES,))

    def _duty_without_a_controller(self) -> Duty:
        if self._leased:
            return decide.duty(self._view, Role.FREE, expired=False, leased=True)
        return decide.duty(self._view, Role.FREE, expired=False)

    def _end_with_the_role(self) -> None:
        view, now = self._view, self._now
        due = self._decision(give_up=True)
        if decide.is_held(view, leased=self._leased):
            self._add(
                "is gone; a process of the group finds a decision held", lambda: now._replace(ending=False)
            )
        elif due is not None:
            after = now._replace(version=self._version(due))
            label = f"is gone; a process of the group decides {due.name}"
            self._write(label, decide.decided(view, due), after=after)
        elif decide.lacks_a_word(view):
            word = decide.committed(view, label_of(now.version), held=self._held_after())
            label = "is gone; a process of the group stores the committed version"
            self._commit(label, word, now.version, self._begun(word))
        else:
            self._add(
                "is gone; a process of the group gives the role back", lambda: now._replace(ending=False)
            )

    def _stand_in(self, role: Role) -> None:
        """Write the one decision that is left in the place of a controller that has the role."""
        if decide.duty(self._view, role, expired=True) is not Duty.ABORT:
            return
        due = decide.decision(self._view, agree=False, give_up=True)
        if due is None:
            return
        word, now = decide.decided(self._view, due), self._now
        if stands_in_without_waiting:
            self._add(
                "is stopped; a rank is about to abort in its place",
                lambda: now._replace(stopped=word.pack()),
            )
        else:
            self._add(
                "is stopped; a rank aborts in its place", lambda: self._stored(now, word.pack(), now.version)
            )

    # -- a rank is gone, or FAULTED ----------------------------------------------------------------

    def _raise_epoch(self) -> None:
        """Decide what is open, store what the group must hold again, then begin the epoch."""
        view, now = self._view, self._now
        gives_up = now._replace(gave_up=True, alive=now.driving or not now.left)
        self._add("gives the group up", lambda: gives_up, (Budget.GIVE_UPS,))
        open_still = self._decision(give_up=True)
        if not epochs.may_end(view) and open_still is None:
            return
        if open_still is not None:
            label = f"decides {open_still.name} before the epoch ends"
            after = now._replace(version=self._version(open_still))
            self._write(label, decide.decided(view, open_still), after=after)
            return
        goal = epochs.goal(
            view,
            asked=label_of(now.version),
            committed=label_of(committed_version(now)),
            served=now.before,
            of_admission=not now.tags,
        )
        completed = epochs.completed_commit(view, goal, held=self._held_after())
        word = completed or epochs.goal_word(view, goal)
        if word is not None:
            said = "nothing" if goal is None else f"version {goal}"
            known = hold_byte_of(now) if word.held else 0
            hold = known if completed is None else self._begun(word)
            self._commit(f"stores that the group must serve {said} again", word, int(goal or 0), hold)
            return
        owed, label = self._owed(), f"raises the epoch: {self._lost} gone or broken"

        def checked() -> ControllerState:
            invariants.check_goal(int(goal or 0), owed)
            return now

        self._add(label, checked)
        if not self.found or self.found[-1].after:
            after = now._replace(
                driving=False,
                gives_up=False,
                recovering=True,
                owed=owed,
                failed=0,
                repaired=0,
                repairs=False,
                replaces=False,
            )
            self._write(label, epochs.next_epoch(view), after=after)

    def _owes(self) -> bool:
        """Whether a restore is to be made once more: that is the owner's, whichever controller commanded."""
        owes = not serves(self._view) and self._unrestored()
        return decide.is_over(self._view) and owes and self._next_attempt() is Attempt.MAKE

    def _restore(self) -> None:
        """Load what the group must serve again, once all have joined the new epoch."""
        view, now = self._view, self._now
        owes = not serves(view) and self._unrestored()
        if self._next_attempt() is Attempt.MAKE and owes:
            self._add("restores once more", lambda: self._checked(now.failed))
            says = Arguments(committed_version(now), before=True, tags=BOTH, restores=True)
            self._open_with("restores", Operation.UPDATE, says)
        elif now.recovering and decide.is_over(view):
            self._add("has nothing to restore", lambda: now._replace(recovering=False))

    def _next_attempt(self) -> Attempt:
        return epochs.next_attempt(self._view, failed=self._now.failed, limit=ATTEMPTS)

    def _next_repair(self) -> Attempt:
        return epochs.next_repair(self._view, failed=self._now.repaired, limit=ATTEMPTS)

    def _repair(self) -> None:
        """Clear the whole group again where a rank is FAULTED."""
        now, due = self._now, self._next_repair()
        if due is Attempt.GIVE_UP and not now.gave_up:
            self._add("ends the ranks whose teardown fails", self._replacing)
        if due is not Attempt.MAKE or now.gave_up:
            return
        owed = self._unrestored()
        self._add("repairs once more", lambda: self._checked(now.repaired))
        self._open_with(
            "repairs by",
            Operation.CLEAR,
            Arguments(None, before=owed, tags=BOTH, restores=owed),
            after=now._replace(repairs=True),
        )

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
            self._add(f"sees {word_name(now.seen.word)} as it is", lambda: now._replace(seen=Seen()))
        if not (now.alive and (now.driving or now.pending or self._lost)):
            return
        self._add(
            "goes on" if now.frozen else "is stopped, with the role",
            lambda: now._replace(frozen=not now.frozen),
            (Budget.CONTROLLER_STOPS,),
        )
        gone, crash = controller_killed(now), (Budget.CONTROLLER_CRASHES,)
        self._add("dies, and none follows", lambda: gone._replace(left=True), (Budget.CONTROLLER_LOSSES,))
        self._add("dies", lambda: gone, crash)
        if takes_over_from_the_living and now.pending:
            self._add("is stopped", lambda: gone._replace(stopped=now.pending), crash)
