"""How whoever sits at the controller's desk stores a word, with what the command's arguments say; checked.

One move stores one word. Which word is due is in :mod:`.controller_moves` and :mod:`.recovery_moves`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from explorer import invariants
from explorer.desk import Desk
from explorer.errors import broken_by
from explorer.participant import read_command, read_status, read_step, status_word
from explorer.scope import Budget
from explorer.work import BOTH
from wsm.states import epochs
from wsm.states.view import View
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation


class DeskOutcome(NamedTuple):
    """One move of the controller; as :class:`explorer.outcomes.Outcome`."""

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


@dataclass(frozen=True)
class Arguments:
    """What is stored before a command word, as far as it matters.

    Parameters
    ----------
    version : int
        What it brings.
    before : bool
        Whether the group served when it was admitted.
    tags : int
        What it is about.
    restores : bool
        Whether it restores what the group served before it lost a rank.
    """

    version: int
    before: bool
    tags: int = BOTH
    restores: bool = False


class Clerk:
    """Whoever sits at the desk, in one world.

    Parameters
    ----------
    desk : Desk
        As it is.
    group : Group
        What can be seen of the others.
    affordable : frozenset of Budget
        What is left to be spent.

    Attributes
    ----------
    found : list of DeskOutcome
        The moves.
    """

    def __init__(self, desk: Desk, group: Group, affordable: frozenset[Budget]) -> None:
        self.found: list[DeskOutcome] = []
        self.desk = desk
        self.group = group
        self.view = group.view(desk)
        self.lost = group.lost(desk)
        self._affordable = affordable

    def add(self, label: str, act: Callable[[], Desk], spends: tuple[Budget, ...] = ()) -> None:
        """Try a move. One that changes nothing, or that cannot be afforded, is no move."""
        if not set(spends) <= self._affordable:
            return
        try:
            after = act()
        except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
            self.found.append(DeskOutcome(label, None, spends, broken_by(error)))
            return
        if after != self.desk:
            self.found.append(DeskOutcome(label, after, spends))

    def write(
        self,
        label: str,
        word: CommandWord,
        spends: tuple[Budget, ...] = (),
        *,
        desk: Desk | None = None,
        says: Arguments | None = None,
    ) -> None:
        """Store a command word, in this move or in the next one; `says`: its arguments, if they are new."""
        desk = desk or self.desk
        if says is None:
            says = Arguments(desk.version, desk.before, desk.tags, desk.restores)
        if not self.group.fine:
            told = desk._replace(before=says.before, tags=says.tags, restores=says.restores)
            self.add(label, lambda: self._stored(told, word.pack(), says.version), spends)
            return
        after = desk._replace(
            pending=word.pack(),
            pending_version=says.version,
            pending_before=says.before,
            pending_tags=says.tags,
            pending_restores=says.restores,
        )
        self.add(f"{label} (not stored yet)", lambda: after, spends)

    def write_pending(self) -> None:
        """Store the word that it has made up its mind to write."""
        desk = self.desk
        after = desk._replace(
            before=desk.pending_before,
            tags=desk.pending_tags,
            restores=desk.pending_restores,
            pending=0,
            pending_version=0,
            pending_before=False,
            pending_tags=BOTH,
            pending_restores=False,
        )
        self.add("stores the command word", lambda: self._stored(after, desk.pending, desk.pending_version))

    def go_on_after_being_stopped(self) -> None:
        """Let a controller that was taken for dead go on."""
        desk = self.desk
        self.add(
            "that was only stopped stores its command word",
            lambda: self._stored(desk._replace(stopped=0), desk.stopped, desk.version),
        )

    def stored_by_another(self, word: CommandWord) -> Desk:
        """Return the desk after another process has stored a command word; it goes on as it meant to."""
        return self._stored(self.desk, word.pack(), self.desk.version)

    def commits(self, word: CommittedWord) -> Desk:
        """Return the desk with another committed word."""
        return self.desk._replace(committed=word.pack())

    def owed(self) -> int:
        """Return the version that the group must serve if its epoch ends now, whatever anybody remembers."""
        view = self.view
        restoring = view.command.operation is Operation.ABORT and self.desk.restores
        if view.command.operation is Operation.NONE or restoring or not all_ended(view):
            return self.desk.owed
        return (view.committed.version or 0) if serves(view) else 0

    def _stored(self, desk: Desk, word: int, version: int) -> Desk:
        invariants.check_command(self.desk, word)
        after = desk._replace(command=word, version=version)
        if not read_command(word).operation.is_decision:
            clears = read_command(word).operation is Operation.CLEAR
            after = after._replace(clears_half=clears and desk.tags != BOTH)
        if not read_command(word).operation.is_commit:
            return after
        lacking = any(
            status.kv == KVState.CLEARED or status.weights == WeightState.CLEARED
            for status in self.view.statuses
        )
        return after._replace(owed=0 if lacking else version)


def all_ended(view: View) -> bool:
    """Whether the last command is over, by what the words say: the protocol's own answer may be wrong."""
    command = view.command
    if command.operation is Operation.NONE:
        return all(word.epoch == command.epoch for word in view.statuses)
    ended = all(word[:2] == command[:2] and word.code.is_terminal for word in view.statuses)
    return ended and (not command.operation.is_commit or view.committed.sequence == command.sequence)


def serves(view: View) -> bool:
    """Whether somebody holds all that a step needs."""
    return any(
        status.weights == WeightState.NORMAL and status.kv == KVState.NORMAL for status in view.statuses
    )
