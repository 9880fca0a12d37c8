"""Park and vote: how ranks agree on the step after which they stop, without a collective.

A rank stores RUNNING before it enters a step and PARKED when it stands at a boundary for a command.
It may stop behind step s only if no rank will ever wait for it in step s + 1. These are the questions
that a standing rank asks the other ranks' step words; it stores its own PARKED first.

A step is taken to be a rendezvous: nobody leaves it before all ranks have entered it. Any all-reduce,
all-gather or barrier in it makes it one.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.states.words import StepKind, StepWord


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
    return any(
        peer.epoch == epoch and peer.step > step and not _has_finished(peer, sequence)
        for index, peer in enumerate(steps)
        if index != rank
    )


def any_broken(steps: Sequence[StepWord], *, epoch: int) -> bool:
    """Whether a step raised on some rank, so that no step of this epoch can be run by all any more."""
    return any(word.epoch == epoch and word.kind is StepKind.BROKEN for word in steps)


def all_stand(
    steps: Sequence[StepWord], *, rank: int, epoch: int, step: int, sequence: int, follow: bool
) -> bool:
    """Whether every rank stands at the same boundary for the same command, so that it is accepted.

    With `follow` (a hot update's commit, which nobody can refuse any more) one peer that has finished
    the command already is proof enough that all stood.
    """
    others = [word for index, word in enumerate(steps) if index != rank]
    if follow and any(word.epoch == epoch and _has_finished(word, sequence) for word in others):
        return True
    return all(word == StepWord(epoch, sequence, StepKind.PARKED, step) for word in others)


def _has_finished(peer: StepWord, sequence: int) -> bool:
    """Whether the peer's word says that it finished `sequence`; a PARKED word names an unfinished one."""
    return sequence != 0 and peer.kind is not StepKind.PARKED and peer.sequence >= sequence
