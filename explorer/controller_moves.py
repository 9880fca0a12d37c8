"""What the controller and its successor can do next, through the real protocol functions.

As :mod:`wsm.controller._transaction` and :mod:`wsm.controller.controller`: a command is opened when the
last one is over, decided once, and driven until it is over; a successor takes over what a dead controller
left. It reads words only, and liveness, which the kernel tells. What the group's owner does when a rank is
gone is in :mod:`.recovery_moves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from explorer import adversary, recovery_moves
from explorer.adversary import controller_killed
from explorer.clerk import Arguments, Clerk, DeskOutcome, Group, serves
from explorer.desk import Desk
from explorer.errors import broken_by
from explorer.scope import Budget
from explorer.work import BOTH, KV_CACHE, WEIGHTS
from wsm.states import decide, epochs, restoring, takeover
from wsm.states.errors import CommandOpenError
from wsm.states.takeover import Duty, Role
from wsm.states.vocabulary import WeightState
from wsm.states.words import CommandWord, Operation


def moves(desk: Desk, group: Group, affordable: frozenset[Budget]) -> list[DeskOutcome]:
    """Return everything that can happen at the controller's desk, adversary's strikes against it aside."""
    at_desk = _Controller(desk, group, affordable)
    try:
        for step in at_desk.steps():
            step()
    except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
        at_desk.found.append(DeskOutcome("looks", None, (), broken_by(error)))
    return at_desk.found


class _Controller(Clerk):
    """Whoever sits at the desk, and what there is to be done in this world."""

    def steps(self) -> Iterator[Callable[[], None]]:
        """Iterate over what there is to look after."""
        desk = self.desk
        if desk.frozen:
            yield lambda: self._stand_in(Role.STALLED)
        elif desk.left and not desk.alive:
            yield from self._without_a_controller()
        elif not desk.alive:
            yield self._take_over
        elif desk.pending:
            yield lambda: self._stand_in(Role.KEPT)
            yield self.write_pending
        else:
            if desk.driving:
                yield self._drive
            if self.lost and not desk.gave_up:
                yield self._raise_epoch
            elif not desk.driving and not self.lost:
                yield self._restore
                if not desk.recovering and not desk.left:
                    yield self._open
        if desk.stopped:
            yield self.go_on_after_being_stopped

    def _take_over(self) -> None:
        """The kernel's lock proves that the one before is dead."""
        found = takeover.inherited(self.view)
        nothing = found is takeover.Inheritance.NOTHING or self.view.command.operation is Operation.NONE
        gives_up = not nothing and found is takeover.Inheritance.DECIDE
        self.add(
            f"is started anew and finds {'nothing open' if nothing else f'a command to {found.value}'}",
            lambda: self.desk._replace(alive=True, driving=not nothing, gives_up=gives_up),
        )

    def _without_a_controller(self) -> Iterator[Callable[[], None]]:
        """Iterate over what a rank or the group's owner does where no controller will come."""
        desk = self.desk
        if desk.pending:
            yield self.write_pending
        elif desk.ending:
            yield self._end_with_the_role
        elif (self.lost or self._owes()) and not desk.gave_up:
            yield self._recover_after_all
        else:
            yield self._take_the_role
        if desk.ending:
            dead = controller_killed(desk)
            self.add("that ends a command dies, with the role", lambda: dead, (Budget.CONTROLLER_CRASHES,))

    def _take_the_role(self) -> None:
        if takeover.duty(self.view, Role.FREE, expired=False) is Duty.TAKE_ROLE:
            self.add("is gone; a process of the group takes the role", lambda: self._ending(True))

    def _end_with_the_role(self) -> None:
        view = self.view
        due = decide.decision(view, agree=self._agree(), give_up=True)
        if due is not None:
            about = self.desk._replace(version=self._version(due))
            self.write(
                f"is gone; a process of the group decides {due.name}", decide.decided(view, due), desk=about
            )
        elif takeover.lacks_a_word(view):
            word = decide.committed(view, self.desk.version or None)
            self.add(
                "is gone; a process of the group stores the committed version", lambda: self.commits(word)
            )
        else:
            self.add("is gone; a process of the group gives the role back", lambda: self._ending(False))

    def _ending(self, has_the_role: bool) -> Desk:
        return self.desk._replace(ending=has_the_role)

    def _owes(self) -> bool:
        """Whether a restore is to be made once more: that is the owner's, whoever gave commands."""
        view, desk = self.view, self.desk
        version = None if serves(view) else epochs.unrestored(view, restores=desk.restores)
        due = restoring.next_attempt(
            view, restores=desk.restores, failed=desk.failed, limit=recovery_moves.ATTEMPTS
        )
        return decide.is_over(view) and version is not None and due is restoring.Attempt.MAKE

    def _recover_after_all(self) -> None:
        """The owner of the group takes the role, since a rank was lost."""
        self.add("is gone; the owner of the group takes the role", lambda: self.desk._replace(alive=True))

    def _stand_in(self, role: Role) -> None:
        """Write the one decision that is left in the place of a controller that has the role."""
        if takeover.duty(self.view, role, expired=True) is not Duty.ABORT:
            return
        due = decide.decision(self.view, agree=False, give_up=True)
        if due is None:
            return
        word, desk = decide.decided(self.view, due), self.desk
        if adversary.stands_in_without_waiting:
            self.add(
                "is stopped; a rank is about to abort in its place",
                lambda: desk._replace(stopped=word.pack()),
            )
        else:
            self.add("is stopped; a rank aborts in its place", lambda: self.stored_by_another(word))

    def _drive(self) -> None:
        view, desk = self.view, self.desk
        due = decide.decision(view, agree=self._agree(), give_up=desk.gives_up or bool(self.lost))
        given_up = decide.decision(view, agree=self._agree(), give_up=True)
        for word, spends in ((due, ()), (given_up, (Budget.GIVE_UPS,))):
            if word is not None and (not spends or word is not due):
                label = f"decides {word.name}" + (", because its deadline passed" if spends else "")
                about = desk._replace(version=self._version(word))
                self.write(label, decide.decided(view, word), spends, desk=about)
        if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
            self.add(
                "stores the committed version",
                lambda: self.commits(decide.committed(view, desk.version or None)),
            )
        if decide.is_over(view):
            # Only an attempt that fails though nobody is gone counts: a new epoch begins with none.
            fails = desk.restores and view.command.operation is Operation.ABORT and not self.lost
            failed = desk.failed + 1 if fails else 0
            self.add(
                "sees that the command is over",
                lambda: desk._replace(driving=False, gives_up=False, failed=failed),
            )

    def _version(self, decision: Operation) -> int:
        """Return the version that is decided about: the one that the participants say they prepared."""
        loads = decision.is_commit and self.desk.tags & WEIGHTS
        return self.group.all[0].loaded if loads else self.desk.version

    def _agree(self) -> bool:
        # Only ranks load; what a helper says of weights counts for nothing.
        return len({other.loaded for other in self.group.all[: self.group.ranks]}) == 1

    def _raise_epoch(self) -> None:
        recovery_moves.raise_epoch(self, agree=self._agree(), version_of=self._version)

    def _restore(self) -> None:
        recovery_moves.restore(
            self, lambda version: self._open_with("restores", Operation.UPDATE, version, ())
        )

    def _open(self) -> None:
        held = {(status.weights, status.kv) for status in self.view.statuses}
        alike = len(held) == 1 and WeightState.FAULTED not in {weights for weights, _ in held}
        for operation in self.group.operations:
            about = (BOTH, WEIGHTS, KV_CACHE) if self.group.halves and not operation.is_hot else (BOTH,)
            for tags in about:
                # Ranks that differ, or a faulted one, can only be cleared, of all: the rest is refused.
                if alike or (operation is Operation.CLEAR and tags == BOTH):
                    self._open_with("opens", operation, None, (Budget.COMMANDS,), tags)

    def _open_with(
        self,
        verb: str,
        operation: Operation,
        version: int | None,
        spends: tuple[Budget, ...],
        tags: int = BOTH,
    ) -> None:
        try:
            word = decide.next_command(self.view, operation)
        except CommandOpenError:
            return
        arguments_lie_there = self.desk.spoiled
        if arguments_lie_there:
            word = word._replace(sequence=word.sequence + 1)
        brings = _new_version(word) if version is None else version
        after = self.desk._replace(driving=True, spoiled=False, recovering=False, owed=self.owed())
        restores = version is not None
        if not restores:
            after = after._replace(failed=0)
        before = restores or self._served_before()
        if operation is not Operation.CLEAR and not tags & WEIGHTS:
            brings = self.view.committed.version or 0  # what was committed stands
        named = f" of version {brings}" if operation is not Operation.CLEAR and tags & WEIGHTS else ""
        named += {BOTH: "", WEIGHTS: ", weights only", KV_CACHE: ", KV cache only"}[tags]
        self.write(
            f"{verb} {operation.name} {word.sequence}{named}",
            word,
            spends,
            desk=after,
            says=Arguments(brings, before, tags, restores),
        )
        if not arguments_lie_there:
            self.add(
                f"dies between the arguments and the word of {operation.name} {word.sequence}",
                lambda: controller_killed(self.desk)._replace(spoiled=True),
                (Budget.CONTROLLER_CRASHES,),
            )

    def _served_before(self) -> bool:
        """Say what the arguments of a command say: whether the group serves that it is written for."""
        view = self.view
        if epochs.unrestored(view, restores=self.desk.restores) is not None:
            return True
        return serves(view) and all(status.weights != WeightState.FAULTED for status in view.statuses)


def _new_version(command: CommandWord) -> int:
    """Return a version that no other command brings, and whose successor none does either."""
    return 2 * command.sequence + 100 * ((command.epoch - 1) % 2)
