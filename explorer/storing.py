"""How a participant takes in what the protocol answers: it remembers the new state and stores its words."""

from __future__ import annotations

from explorer import work
from explorer.looking import Told, told
from explorer.participant import Participant, Pending
from wsm.states import rank as protocol
from wsm.states.phases import Event, Happened
from wsm.states.rank_state import Todo


def store(me: Participant, answer: Told, *, fine: bool) -> Participant:
    """Remember the state, store the words; two words in two moves of their own where moves are fine."""
    me = me._replace(state=answer.state)
    if fine and answer.step and answer.status:
        return me._replace(pending=Pending(Todo.LOOK, answer.step, answer.status))
    return me._replace(step=answer.step or me.step, status=answer.status or me.status)


def tell(
    me: Participant,
    event: Event,
    *,
    fine: bool,
    collective: tuple[bool, ...] = (),
    touched: bool = False,
    serves: bool = True,
) -> Participant:
    """Tell the protocol what happened, with the machines' present codes."""
    weights, kv = int(me.joint.weights), int(me.joint.kv)
    happened = Happened(event, weights, kv, collective=collective, touched=touched, serves=serves)
    return store(me, told(protocol.take_in(me.state, happened)), fine=fine)


def failed(me: Participant, *, fine: bool) -> Participant:
    """Tell machines and protocol that the command failed here."""
    me = work.fail(me)
    return tell(me, Event.FAILED, touched=me.torn, fine=fine)
