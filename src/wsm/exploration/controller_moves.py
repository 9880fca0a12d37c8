"""What the controller and its successor can do next, through the real protocol functions.

As :mod:`wsm.controller.transaction` and :mod:`wsm.controller.controller`: a command is opened when the
last one is over, decided once, and driven until it is over; a successor takes over what a dead controller
left. It reads words only, and liveness, which the kernel tells. What the group's owner does when a rank is
gone is in :mod:`.recovery_moves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wsm.exploration import recovery_moves
from wsm.exploration.adversary import controller_killed
from wsm.exploration.clerk import Arguments, Clerk, DeskOutcome, Group, serves
from wsm.exploration.desk import Desk
from wsm.exploration.errors import broken_by
from wsm.exploration.scope import Budget
from wsm.exploration.work import BOTH, KV_CACHE, WEIGHTS
from wsm.protocol import decide, epochs, takeover
from wsm.protocol.errors import CommandOpenError
from wsm.signals.word import CommandWord, Operation
from wsm.states.vocabulary import WeightState


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
        if not desk.alive:
            yield self._take_over
        elif desk.pending:
            yield self.write_pending
        else:
            if desk.driving:
                yield self._drive
            if self.lost and not desk.gave_up:
                yield self._raise_epoch
            elif not desk.driving and not self.lost:
                yield self._restore
                if not desk.recovering:
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
