"""What one participant has read of the words of its group, and what the words of all say together.

Theory of operation
-------------------
The words of a view were loaded one after the other and may be stale in any mixture; every rule that
looks at a view is exact under that. Nothing here knows how a view was read.

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

from collections.abc import Sequence
from dataclasses import dataclass, field

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

    Parameters
    ----------
    command : CommandWord
        The controller's word.
    steps : sequence of StepWord
        One per rank; helpers have none.
    statuses : sequence of StatusWord
        One per participant: the ranks first, then the helpers.
    committed : CommittedWord
        The last version that the whole group committed; only the controller looks at it.
    """

    command: CommandWord
    steps: Sequence[StepWord]
    statuses: Sequence[StatusWord]
    committed: CommittedWord = field(default_factory=lambda: CommittedWord(0, None))

    def of_command(self, participant: int) -> StatusWord | None:
        """Return the participant's status if it belongs to the command of this view, else None."""
        status = self.statuses[participant]
        if (status.epoch, status.sequence) == (self.command.epoch, self.command.sequence):
            return status
        return None


def is_behind(steps: Sequence[StepWord], *, rank: int, epoch: int, step: int, sequence: int) -> bool:
    """Whether a peer is in a later step that needs this rank.

    Parameters
    ----------
    steps : sequence of StepWord
        One per rank.
    rank, epoch, step : int
        This rank, its epoch, the last step that it entered.
    sequence : int
        The command that this rank stands for; 0 if it knows of none. A peer that has finished that
        command already does not wait for this rank in a later step: it will follow when it has
        finished too.
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
_ACCEPTED = frozenset((StatusCode.ACCEPTED, StatusCode.RUNNING, StatusCode.PREPARED, StatusCode.DONE_CLEARED))


def all_answered(view: View) -> bool:
    """Whether every rank has answered the command, and so has looked at what it is to load, or refused it."""
    return all(view.of_command(index) is not None for index in range(len(view.steps)))


def all_ready(view: View, action: int) -> bool:
    """Whether every rank has voted for entering collective action number `action`.

    A participant without steps is in no communicator: no rank waits for it inside.
    """
    return all(
        (status := view.of_command(index)) is not None and status.ready > action
        for index in range(len(view.steps))
    )


def never_ready(view: View, action: int) -> list[int]:
    """Return the ranks that have said that they will never enter `action`."""
    return [
        index
        for index in range(len(view.steps))
        if (status := view.of_command(index)) is not None
        and status.code >= StatusCode.FAILED
        and status.ready <= action
    ]


def failed_inside(view: View, action: int) -> list[int]:
    """Return the ranks that failed in the collective `action` after they had voted for it.

    Such a rank says so before its connections close: one that finds its own closed finds that word, too.
    """
    return [
        index
        for index in range(len(view.steps))
        if (status := view.of_command(index)) is not None
        and StatusCode.FAILED <= status.code <= StatusCode.STOPPED_TOUCHED
        and status.action == action
        and status.ready > action
    ]


def all_stopped(view: View) -> bool:
    """Whether every participant has stopped for the aborted command."""
    return all(
        (status := view.of_command(index)) is not None and status.code >= StatusCode.STOPPED_UNTOUCHED
        for index in range(len(view.statuses))
    )


def any_accepted(view: View) -> bool:
    """Whether some rank has accepted the command, which it does only where all ranks stand."""
    return any(
        (status := view.of_command(index)) is not None and (status.ready or status.code in _ACCEPTED)
        for index in range(len(view.steps))
    )


def any_committed(view: View) -> bool:
    """Whether some rank serves the command's version; a hot update brings that only where all stand."""
    return any(
        (status := view.of_command(index)) is not None and status.code is StatusCode.DONE_COMMITTED
        for index in range(len(view.steps))
    )


def any_touched(view: View) -> bool:
    """Whether any participant's weights are not whole; asked once :func:`all_stopped` holds."""
    return any(
        (status := view.of_command(index)) is not None and status.code in _TOUCHED
        for index in range(len(view.statuses))
    )
