"""What the controller, its successor and the group's owner can do next, through the real protocol functions.

As :mod:`wsm.controller.transaction` and :mod:`wsm.controller.controller`: a command is opened when the
last one is over, decided once, and driven until it is over; a successor takes over what a dead controller
left; the owner raises the epoch when a rank is gone, and restores what the group held. It reads words
only, and liveness, which the kernel tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wsm.exploration import invariants
from wsm.exploration.adversary import controller_killed
from wsm.exploration.desk import Desk
from wsm.exploration.errors import RuleBrokenError
from wsm.exploration.participant import read_command, read_status, read_step, status_word
from wsm.exploration.scope import Budget
from wsm.exploration.work import BOTH, KV_CACHE, WEIGHTS
from wsm.protocol import decide, epochs, takeover
from wsm.protocol.errors import CommandOpenError
from wsm.protocol.view import View
from wsm.signals.word import CommandWord, CommittedWord, Operation
from wsm.states.vocabulary import KVState, WeightState


class DeskOutcome(NamedTuple):
    """One move of the controller; as :class:`wsm.exploration.outcomes.Outcome`."""

    label: str
    after: Desk | None
    spends: tuple[Budget, ...] = ()
    broken: str = ""


class Visible(NamedTuple):
    """What a controller can find out about a participant: its words, whether it lives, what it reported."""

    step: int
    status: int
    alive: bool | int
    loaded: int


@dataclass(frozen=True)
class Group:
    """What a controller can see of the group.

    Parameters
    ----------
    ranks : int
        How many participants are ranks.
    all : tuple of Visible
        Every participant.
    operations : tuple of Operation
        What it may be asked for.
    halves : bool
        Whether commands are also about one half of what ranks hold.
    fine : bool
        Whether deciding and writing are moves of their own.
    """

    ranks: int
    all: tuple[Visible, ...]
    operations: tuple[Operation, ...]
    halves: bool
    fine: bool

    def view(self, desk: Desk) -> View:
        """Return what the controller reads now."""
        hidden, value = desk.seen
        return View(
            read_command(desk.command),
            [read_step(other.step) for other in self.all[: self.ranks]],
            [
                read_status(value if hidden == status_word(index) else other.status)
                for index, other in enumerate(self.all)
            ],
            CommittedWord.unpack(desk.committed),
        )

    def lost(self, desk: Desk) -> list[int]:
        """Return because of whom the epoch must end."""
        dead = [index for index, other in enumerate(self.all) if not other.alive]
        return epochs.ended_by(self.view(desk), dead)


def moves(desk: Desk, group: Group, affordable: frozenset[Budget]) -> list[DeskOutcome]:
    """Return everything that can happen at the controller's desk, adversary's strikes against it aside."""
    clerk = _Clerk(desk, group, affordable)
    for step in clerk.steps():
        step()
    return clerk.found


class _Clerk:
    """Whoever sits at the desk, in one world."""

    def __init__(self, desk: Desk, group: Group, affordable: frozenset[Budget]) -> None:
        self.found: list[DeskOutcome] = []
        self._desk = desk
        self._group = group
        self._affordable = affordable
        self._view = group.view(desk)
        self._lost = group.lost(desk)

    def steps(self) -> Iterator[Callable[[], None]]:
        """Iterate over what there is to look after."""
        desk = self._desk
        if not desk.alive:
            yield self._take_over
        elif desk.pending:
            yield self._write_pending
        else:
            if desk.driving:
                yield self._drive
            if self._lost:
                yield self._raise_epoch
            elif not desk.driving:
                yield self._restore
                if not desk.recovering:
                    yield self._open
        if desk.stopped:
            yield self._go_on_after_being_stopped

    def _take_over(self) -> None:
        """The kernel's lock proves that the one before is dead."""
        found = takeover.inherited(self._view)
        nothing = found is takeover.Inheritance.NOTHING or self._view.command.operation is Operation.NONE
        gives_up = not nothing and found is takeover.Inheritance.DECIDE
        self._add(
            f"is started anew and finds {'nothing open' if nothing else f'a command to {found.value}'}",
            lambda: self._desk._replace(alive=True, driving=not nothing, gives_up=gives_up),
        )

    def _drive(self) -> None:
        view, desk = self._view, self._desk
        due = decide.decision(view, agree=self._agree(), give_up=desk.gives_up or bool(self._lost))
        given_up = decide.decision(view, agree=self._agree(), give_up=True)
        for word, spends in ((due, ()), (given_up, (Budget.GIVE_UPS,))):
            if word is not None and (not spends or word is not due):
                label = f"decides {word.name}" + (", because its deadline passed" if spends else "")
                self._write(label, decide.decided(view, word), spends, version=self._version(word))
        if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
            self._add(
                "stores the committed version",
                lambda: self._commits(decide.committed(view, desk.version or None)),
            )
        if decide.is_over(view):
            self._add("sees that the command is over", lambda: desk._replace(driving=False, gives_up=False))

    def _version(self, decision: Operation) -> int:
        """Return the version that is decided about: the one that the participants say they prepared."""
        loads = decision.is_commit and self._desk.tags & WEIGHTS
        return self._group.all[0].loaded if loads else self._desk.version

    def _agree(self) -> bool:
        # Only ranks load; what a helper says of weights counts for nothing.
        return len({other.loaded for other in self._group.all[: self._group.ranks]}) == 1

    def _raise_epoch(self) -> None:
        """Decide what is open, store what the group must hold again, then begin the epoch."""
        view, desk = self._view, self._desk
        open_still = decide.decision(view, agree=self._agree(), give_up=True)
        if open_still is not None:
            label = f"decides {open_still.name} before the epoch ends"
            self._write(label, decide.decided(view, open_still), (), version=self._version(open_still))
            return
        goal = epochs.restored_version(view, asked=desk.version, served=desk.before)
        completed = epochs.completed_commit(view, goal) if goal is not None else None
        word = completed or epochs.goal_word(view, goal)
        if word is not None:
            self._add(f"stores that the group must serve {_said(goal)} again", lambda: self._commits(word))
            return
        owed, label = self._owed(), f"raises the epoch: {self._lost} gone or broken"
        try:
            invariants.check_goal(goal, owed)
        except RuleBrokenError as error:
            self.found.append(DeskOutcome(label, None, (), str(error)))
            return
        after = desk._replace(driving=False, gives_up=False, recovering=True, owed=owed)
        self._write(label, epochs.next_epoch(view), (), desk=after)

    def _restore(self) -> None:
        """Load what the group must serve again, once all have joined the new epoch."""
        view, desk = self._view, self._desk
        version = None if _serves(view) else epochs.unrestored(view)
        if version is not None:
            self._open_with("restores", Operation.UPDATE, version, ())
        elif desk.recovering and decide.is_over(view):
            self._add("has nothing to restore", lambda: desk._replace(recovering=False))

    def _open(self) -> None:
        held = {(status.weights, status.kv) for status in self._view.statuses}
        alike = len(held) == 1 and WeightState.FAULTED not in {weights for weights, _ in held}
        for operation in self._group.operations:
            about = (BOTH, WEIGHTS, KV_CACHE) if self._group.halves and not operation.is_hot else (BOTH,)
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
            word = decide.next_command(self._view, operation)
        except CommandOpenError:
            return
        arguments_lie_there = self._desk.spoiled
        if arguments_lie_there:
            word = word._replace(sequence=word.sequence + 1)
        brings = _new_version(word) if version is None else version
        after = self._desk._replace(driving=True, spoiled=False, recovering=False, owed=self._owed())
        before = version is not None or _served_before(self._view)
        if operation is not Operation.CLEAR and not tags & WEIGHTS:
            brings = self._view.committed.version or 0  # what was committed stands
        named = f" of version {brings}" if operation is not Operation.CLEAR and tags & WEIGHTS else ""
        named += {BOTH: "", WEIGHTS: ", weights only", KV_CACHE: ", KV cache only"}[tags]
        self._write(
            f"{verb} {operation.name} {word.sequence}{named}",
            word,
            spends,
            desk=after,
            version=brings,
            before=before,
            tags=tags,
        )
        if not arguments_lie_there:
            self._add(
                f"dies between the arguments and the word of {operation.name} {word.sequence}",
                lambda: controller_killed(self._desk)._replace(spoiled=True),
                (Budget.CONTROLLER_CRASHES,),
            )

    def _write(
        self,
        label: str,
        word: CommandWord,
        spends: tuple[Budget, ...],
        *,
        desk: Desk | None = None,
        version: int | None = None,
        before: bool | None = None,
        tags: int | None = None,
    ) -> None:
        """Store a command word, in the same move or in the next one."""
        desk = desk or self._desk
        if version is None:
            version = desk.version
        if before is None:
            before = desk.before
        if tags is None:
            tags = desk.tags
        if not self._group.fine:
            told = desk._replace(before=before, tags=tags)
            self._add(label, lambda: self._stored(told, word.pack(), version), spends)
            return
        after = desk._replace(
            pending=word.pack(), pending_version=version, pending_before=before, pending_tags=tags
        )
        self._add(f"{label} (not stored yet)", lambda: after, spends)

    def _write_pending(self) -> None:
        desk = self._desk
        after = desk._replace(pending=0, pending_version=0, pending_before=False, before=desk.pending_before)
        after = after._replace(tags=desk.pending_tags, pending_tags=BOTH)
        self._add("stores the command word", lambda: self._stored(after, desk.pending, desk.pending_version))

    def _go_on_after_being_stopped(self) -> None:
        desk = self._desk
        self._add(
            "that was only stopped stores its command word",
            lambda: self._stored(desk._replace(stopped=0), desk.stopped, desk.version),
        )

    def _stored(self, desk: Desk, word: int, version: int) -> Desk:
        invariants.check_command(self._desk, word)
        after = desk._replace(command=word, version=version)
        if not read_command(word).operation.is_decision:
            clears = read_command(word).operation is Operation.CLEAR
            after = after._replace(clears_half=clears and desk.tags != BOTH)
        if not read_command(word).operation.is_commit:
            return after
        lacking = any(
            status.kv == KVState.CLEARED or status.weights == WeightState.CLEARED
            for status in self._view.statuses
        )
        return after._replace(owed=0 if lacking else version)

    def _owed(self) -> int:
        """Return the version that the group must serve if its epoch ends now, whatever anybody remembers."""
        view = self._view
        if view.command.operation is Operation.NONE or not decide.is_over(view):
            return self._desk.owed
        return (view.committed.version or 0) if _serves(view) else 0

    def _commits(self, word: CommittedWord) -> Desk:
        return self._desk._replace(committed=word.pack())

    def _add(self, label: str, act: Callable[[], Desk], spends: tuple[Budget, ...] = ()) -> None:
        if not set(spends) <= self._affordable:
            return
        try:
            after = act()
        except RuleBrokenError as error:
            self.found.append(DeskOutcome(label, None, spends, str(error)))
            return
        if after != self._desk:
            self.found.append(DeskOutcome(label, after, spends))


def _said(goal: int | None) -> str:
    return "nothing" if goal is None else f"version {goal}"


def _served_before(view: View) -> bool:
    """Say what the arguments of a command say: whether the group serves that it is written for."""
    if epochs.unrestored(view) is not None:
        return True
    return _serves(view) and all(status.weights != WeightState.FAULTED for status in view.statuses)


def _serves(view: View) -> bool:
    return any(
        status.weights == WeightState.NORMAL and status.kv == KVState.NORMAL for status in view.statuses
    )


def _new_version(command: CommandWord) -> int:
    """Return a version that no other command brings, and whose successor none does either."""
    return 2 * command.sequence + 100 * ((command.epoch - 1) % 2)
