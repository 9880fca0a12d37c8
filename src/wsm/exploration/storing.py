"""How a participant takes in what the protocol answers: it remembers the new state and stores its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wsm.exploration import work
from wsm.exploration.looking import Told, told
from wsm.exploration.participant import Participant, Pending
from wsm.states import rank as protocol
from wsm.states.rank_state import Move, RankState, Todo


def store(me: Participant, answer: Told, *, fine: bool) -> Participant:
    """Remember the state, store the words; two words in two moves of their own where moves are fine."""
    me = me._replace(state=answer.state)
    if fine and answer.step and answer.status:
        return me._replace(pending=Pending(Todo.LOOK, answer.step, answer.status))
    return me._replace(step=answer.step or me.step, status=answer.status or me.status)


def tell(me: Participant, protocol_function: Callable[[RankState], Move], *, fine: bool) -> Participant:
    """Tell the protocol what came of something, with the machines' present codes."""
    state = replace(me.state, weights=int(me.joint.weights), kv=int(me.joint.kv))
    return store(me, told(protocol_function(state)), fine=fine)


def failed(me: Participant, *, fine: bool) -> Participant:
    """Tell machines and protocol that the command failed here."""
    me = work.fail(me)
    return tell(me, lambda state: protocol.failed(state, touched=me.torn), fine=fine)
