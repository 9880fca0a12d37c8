"""Moves that depend on where the others really are: coming to life, leaving a step or a collective action.

A step and a collective action are real in what matters: whoever has entered stays inside until all have, or
until somebody is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer import invariants, work
from explorer.deeds import Doer
from explorer.looking import told
from explorer.outcomes import Outcome
from explorer.participant import (
    Participant,
    Place,
    Presence,
    Public,
    read_command,
    read_status,
    read_step,
)
from explorer.scope import Budget
from explorer.situation import Situation
from explorer.storing import failed, store, tell
from wsm.states import rank as protocol
from wsm.states.errors import EpochUsedError
from wsm.states.phases import Event
from wsm.states.rank_state import Phase


def someone_is_gone(others: Sequence[Presence | Public], epoch: int, command: int) -> bool:
    """Whether what needs all of that epoch will never be whole: a death, a broken step, a new epoch."""
    return read_command(command).epoch > epoch or any(
        (other.epoch == epoch and not other.alive) or invariants.is_broken(other.step, epoch)
        for other in others
    )


def start(me: Participant, situation: Situation) -> list[Outcome]:
    """A new process takes the slot, if the epoch is one in which nobody did."""
    doer = Doer(me, situation)
    command = read_command(situation.command)
    try:
        move = protocol.join(
            situation.index, command, read_step(me.step), read_status(me.status), steps=me.state.steps
        )
    except EpochUsedError:
        return []
    blank = Participant(me.step, me.status, alive=True, place=Place.FREE, state=move.state)
    doer.add("is started anew and joins the epoch", lambda: store(blank, told(move), fine=situation.fine))
    return doer.outcomes.found


def inside_a_step(me: Participant, situation: Situation, ranks: Sequence[Presence]) -> list[Outcome]:
    """Leave it when all ranks have entered; be torn out when somebody never will."""
    doer, free, step = Doer(me, situation), me._replace(place=Place.FREE), me.state.step
    if not invariants.is_blocked(me, ranks):
        doer.add(f"leaves step {step}", lambda: free)
    elif someone_is_gone(ranks, me.state.epoch, situation.command):
        doer.add(f"is torn out of step {step}", lambda: _broken(free, situation))
    doer.add(f"raises in step {step}", lambda: _broken(free, situation), Budget.BROKEN_STEPS)
    return doer.outcomes.found


def _broken(me: Participant, situation: Situation) -> Participant:
    """Say that the step raised; a command that waits for this rank to stand fails with it."""
    me = tell(me, Event.BROKE, fine=situation.fine)
    waits = me.state.phase is not Phase.IDLE and protocol.may_fail(me.state)
    return failed(me, fine=situation.fine) if waits else me


def inside_an_action(me: Participant, situation: Situation, all_of_them: Sequence[Public]) -> list[Outcome]:
    """Leave it, in any way, when all have entered; be torn out when somebody never will."""
    doer, free = Doer(me, situation), me._replace(place=Place.FREE)
    doer.add(
        "raises in the collective action",
        lambda: failed(work.tear(free), fine=situation.fine),
        Budget.BROKEN_STEPS,
    )
    if invariants.someone_raised_beside(me, all_of_them):
        doer.add("is torn out of the collective action", lambda: failed(free, fine=situation.fine))
    if invariants.all_inside(me, all_of_them):
        doer.come_out(free)
    elif someone_is_gone(all_of_them, me.state.epoch, situation.command):
        doer.add("is torn out of the collective action", lambda: failed(free, fine=situation.fine))
    else:
        doer.add(
            "waits in the collective action",
            lambda: invariants.check_company(me, all_of_them, situation.index),
        )
    return doer.outcomes.found
