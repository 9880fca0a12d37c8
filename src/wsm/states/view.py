"""What one participant has read of the words of its group, and what the words of all say together.

Theory of operation
-------------------
The words of a view were loaded one after the other and may be stale in any mixture; every rule that
looks at a view is exact under that. Nothing here knows how a view was read. Where no memory is shared, it is
made of what ranks answer (:func:`view_of_answers`); a rank without an answer is neither PREPARED nor failed,
and nothing is over.

**Park and vote: how ranks agree on the step after which they stop, without a collective.** A rank stores
RUNNING before it enters a step and PARKED when it stands at a boundary for a command. It may stop behind step
s only if no rank will ever wait for it in step s + 1. :func:`is_behind`, :func:`any_broken` and
:func:`all_stand` are the questions that a standing rank asks the other ranks' step words; it stores its own
PARKED first. A step is taken to be a rendezvous: no rank leaves it before all ranks have entered it. Any
all-reduce, all-gather or barrier in it makes it one.

**Votes: which ranks are ready for a collective action, never will be, or stopped after an ABORT.** A vote
that was given shows in every later word of the same sequence (``ready``), so one reading of the present words
is enough, however late it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import NamedTuple

from wsm.states.words import (
    CommandWord,
    CommittedWord,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
    step_in_word,
    steps_ahead,
)


@dataclass(frozen=True)
class View:
    """One reading of a group's words.

    `steps`: one per rank; helpers have none. `statuses`: one per participant: the ranks first, then the
    helpers. `committed`: the last version that the whole group committed; only the controller looks at it.
    `silent`: participants that have not answered; none where words are shared.
    """

    command: CommandWord
    steps: Sequence[StepWord]
    statuses: Sequence[StatusWord]
    committed: CommittedWord = field(default_factory=lambda: CommittedWord(0, None))
    silent: frozenset[int] = frozenset()

    def of_command(self, participant: int) -> StatusWord | None:
        """Return the participant's status if it belongs to the command of this view, else None."""
        status = self.statuses[participant]
        return status if status[:2] == self.command[:2] else None

    def of_all(self) -> list[StatusWord | None]:
        """Return the status of each participant, as far as it belongs to the command of this view."""
        at_hand = self.command[:2]
        return [status if status[:2] == at_hand else None for status in self.statuses]

    def of_ranks(self) -> list[StatusWord | None]:
        """Return that of each rank."""
        return self.of_all()[: len(self.steps)]

    @property
    def unstored(self) -> bool:
        """Whether the command was committed, and the committed word does not say so."""
        return self.command.operation.is_commit and self.committed.sequence != self.command.sequence


class RankAnswer(NamedTuple):
    """What one rank says where no word is shared.

    `term`: which driver it answers: a successor asks under a higher number, and from then on the rank takes
    no command of a lower one in, however late that arrives. `heard`: the last command that it has taken in;
    one of its decision. `committed`: the last version that it was told is committed.
    """

    rank: int
    term: int
    heard: CommandWord
    status: StatusWord
    committed: CommittedWord


def view_of_answers(
    participants: int,
    answers: Iterable[RankAnswer],
    *,
    term: int,
    recorded: CommandWord | None = None,
    committed: CommittedWord | None = None,
) -> View:
    """Return the view of a driver that has these answers, in any order, some late, some doubled.

    A decision is what a rank has heard, or what the driver has recorded before it told the first one. Words
    only grow, so that of several answers the furthest counts. Of steps nothing is known.

    `answers`: to this driver, and to earlier ones, which do not count. `recorded`, `committed`: what the
    driver has recorded; None: nothing, as a successor on another host.
    """
    statuses: dict[int, StatusWord] = {}
    command, stored = recorded or CommandWord.unpack(0), committed or CommittedWord(0, None)
    for answer in answers:
        if answer.term != term:
            continue
        before = statuses.get(answer.rank, answer.status)
        statuses[answer.rank] = max(before, answer.status, key=itemgetter(slice(3)))
        command = max(command, answer.heard, key=lambda word: (*word[:2], word.operation.is_decision))
        stored = max(stored, answer.committed, key=attrgetter("sequence"))
    words = [statuses.get(index, _SILENCE) for index in range(participants)]
    return View(command, (), words, stored, frozenset(range(participants)) - set(statuses))


#: The status of a participant that has not answered: of no epoch, and nothing that could serve.
_SILENCE = StatusWord(0, 0, StatusCode.NONE)


def is_behind(steps: Sequence[StepWord], *, rank: int, epoch: int, step: int, sequence: int) -> bool:
    """Whether a peer is in a later step that needs this rank.

    `steps`: one per rank. `rank`, `epoch`, `step`: this rank, its epoch, the last step that it entered.
    `sequence`: the command that this rank stands for; 0 if it knows of none. A peer that has finished that
    command already does not wait for this rank in a later step: it will follow when it has finished too.
    """
    for index, peer in enumerate(steps):
        if index == rank or peer.epoch != epoch:
            continue
        if steps_ahead(peer.step, step) > 0 and not _has_finished(peer, sequence):
            return True
    return False


def any_broken(steps: Sequence[StepWord], *, epoch: int) -> bool:
    """Whether a step raised on some rank, so that no step of this epoch can be run by all any more."""
    for word in steps:  # noqa: SIM110 - a rank asks at every look, and a generator costs more than all else
        if word.kind is StepKind.BROKEN and word.epoch == epoch:
            return True
    return False


def all_stand(
    steps: Sequence[StepWord], *, rank: int, epoch: int, step: int, sequence: int, follow: bool
) -> bool:
    """Whether every rank stands at the same boundary for the same command, so that it is accepted.

    With `follow` (a hot update's commit, which no rank can refuse any more) one peer that has finished
    the command already is proof enough that all stood.
    """
    here, stand = StepWord(epoch, sequence, StepKind.PARKED, step_in_word(step)), True
    for index, word in enumerate(steps):
        if index != rank:
            if follow and word.epoch == epoch and _has_finished(word, sequence):
                return True
            stand = stand and word == here
    return stand


def _has_finished(peer: StepWord, sequence: int) -> bool:
    """Whether the peer's word says that it finished `sequence`; a PARKED word names an unfinished one."""
    return sequence != 0 and peer.kind is not StepKind.PARKED and peer.sequence >= sequence


#: Codes after an ABORT that say "this rank's weights are not the old ones any more".
_TOUCHED = frozenset((StatusCode.STOPPED_TOUCHED, StatusCode.DONE_CLEARED, StatusCode.DONE_FAULTED))

#: Codes that a rank reaches only after it has accepted; a hot update, which stages first, aside.
ACCEPTED = frozenset((StatusCode.ACCEPTED, StatusCode.RUNNING, StatusCode.PREPARED, StatusCode.DONE_CLEARED))


def all_answered(view: View) -> bool:
    """Whether every rank has answered the command, and so has looked at what it is to load, or refused it."""
    return None not in view.of_ranks()


def all_ready(view: View, action: int) -> bool:
    """Whether every rank has voted for entering collective action number `action`.

    A participant without steps is in no communicator: no rank waits for it inside.
    """
    return all(status is not None and status.ready > action for status in view.of_ranks())


def never_ready(view: View, action: int) -> list[int]:
    """Return the ranks that have said that they will never enter `action`."""
    return [
        rank
        for rank, status in enumerate(view.of_ranks())
        if status is not None and status.code >= StatusCode.FAILED and status.ready <= action
    ]


def failed_inside(view: View, action: int) -> list[int]:
    """Return the ranks that failed in the collective `action` after they had voted for it.

    Such a rank says so before its connections close: one that finds its own closed finds that word, too.
    """
    return [
        rank
        for rank, status in enumerate(view.of_ranks())
        if status is not None and status.code.is_failure and status.action == action and status.ready > action
    ]


def all_stopped(view: View) -> bool:
    """Whether every participant has stopped for the aborted command."""
    stopped = StatusCode.STOPPED_UNTOUCHED
    return all(status is not None and status.code >= stopped for status in view.of_all())


def any_accepted(view: View) -> bool:
    """Whether some rank has accepted the command, which it does only where all ranks stand."""
    return any(status is not None and (status.ready or status.code in ACCEPTED) for status in view.of_ranks())


def any_committed(view: View) -> bool:
    """Whether some rank serves the command's version; a hot update brings that only where all stand."""
    return any(status is not None and status.code is StatusCode.DONE_COMMITTED for status in view.of_ranks())


def any_touched(view: View) -> bool:
    """Whether any participant's weights are not whole; asked once :func:`all_stopped` holds."""
    return any(status is not None and status.code in _TOUCHED for status in view.of_all())
