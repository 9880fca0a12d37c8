"""The three dialogues between caller, controller, words and ranks: clear, update, hot update.

The pieces that they share are in :mod:`.phrases`. The order of the words is the protocol's: a test drives
the protocol's own code and compares. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from wsm.states.diagram.dialogue import RANKS, Block, Branch, Dialogue, Item, Message, Note, Participant
from wsm.states.diagram.model import PlanSummary
from wsm.states.diagram.phrases import (
    accept,
    both,
    command,
    decision,
    drain_and_park,
    first_step,
    status,
    steps,
    stretch,
    told,
    vote,
    walk,
    work,
)
from wsm.states.joint import START, JointState
from wsm.states.vocabulary import KVEvent, KVState, PlanName, WeightEvent, WeightState

_A, _C, _W = Participant.CALLER, Participant.CONTROLLER, Participant.WORDS
_R0, _R1 = RANKS
_SERVING = JointState(WeightState.NORMAL, KVState.NORMAL)

Plans = Mapping[PlanName, PlanSummary]

#: Conditions of the choices, by which a test picks its way.
PREPARED_BY_ALL = "all are PREPARED with matching manifests"
NOT_PREPARED = "one FAILED, REFUSED or died, manifests differ, or the caller gave up"
CLEARED_BY_ALL = "all are cleared"
NOT_CLEARED = "one FAILED or REFUSED, died, or the deadline passed"
NOBODY_TOUCHED = "no rank touched its weights"
SOMEBODY_TOUCHED = "some rank did, or this one held nothing"
STAGED_BY_ALL = "all have staged, with matching manifests"
NOT_STAGED = "one FAILED or REFUSED, died, manifests differ, or the caller gave up"


def clear_dialogue(plans: Plans) -> Dialogue:
    """Return the dialogue of a clear."""
    begun, began = walk(_SERVING, WeightEvent.CLEAR, KVEvent.CLEAR)
    _, done = walk(begun, KVEvent.CLEARED, WeightEvent.CLEARED)
    return Dialogue(
        "sequence_clear",
        "clear, from serving to nothing held",
        (
            *command("clear()", "CLEAR"),
            *drain_and_park(),
            *accept(began),
            *work(plans[PlanName.CLEAR]),
            Block(
                "alt",
                (
                    Branch(
                        CLEARED_BY_ALL,
                        (
                            both(*done),
                            *status("DONE_CLEARED"),
                            told("every rank is terminal, so there is nothing to decide"),
                            Message(_C, _A, "receipt"),
                        ),
                    ),
                    Branch(NOT_CLEARED, _failed_clear(begun, plans)),
                ),
            ),
        ),
    )


def update_dialogue(plans: Plans) -> Dialogue:
    """Return the dialogue of an update of a cleared group."""
    begun, began = walk(START, WeightEvent.UPDATE)
    ready, rebuilt = walk(begun, KVEvent.UPDATE, KVEvent.REBUILT)
    prepared, finished = walk(ready, WeightEvent.PREPARED)
    _, committed = walk(prepared, WeightEvent.COMMIT)
    return Dialogue(
        "sequence_update",
        "update of a cleared group",
        (
            *command("update(version)", "UPDATE"),
            *drain_and_park(),
            *accept(began),
            *work(plans[PlanName.UPDATE]),
            both("with the KV cache's action", *rebuilt),
            Block(
                "alt",
                (
                    Branch(
                        PREPARED_BY_ALL,
                        (
                            both(*finished),
                            *status("PREPARED"),
                            told("all PREPARED, manifests match"),
                            *decision("COMMIT"),
                            both(*committed),
                            *status("DONE_COMMITTED"),
                            told("every rank is terminal"),
                            Message(_C, _A, "receipt"),
                            *first_step(),
                        ),
                    ),
                    Branch(NOT_PREPARED, _aborted_update(begun, plans)),
                ),
            ),
        ),
    )


def hot_update_dialogue(plans: Plans) -> Dialogue:
    """Return the dialogue of a hot update, staged while the ranks serve."""
    plan = plans[PlanName.HOT]
    flipped, flip = walk(_SERVING, WeightEvent.UPDATE, KVEvent.UPDATE, KVEvent.REBUILT, WeightEvent.PREPARED)
    _, committed = walk(flipped, WeightEvent.COMMIT)
    return Dialogue(
        "sequence_hot_update",
        "hot update, staged beside the weights that serve",
        (
            *command("hot update(version)", "HOT_UPDATE"),
            both("refused too where a second version does not fit"),
            *status("DRAINING"),
            both(stretch("beside the loop", plan.name, plan.steps[: plan.staged])),
            Block(
                "loop",
                (
                    Branch(
                        "while it stages, every rank serves the old version",
                        (*steps("RUNNING (epoch, q-1, n)"),),
                    ),
                ),
            ),
            both("weights stay NORMAL", "the new ones stand beside them, verified"),
            Block(
                "alt",
                (
                    Branch(
                        STAGED_BY_ALL,
                        (
                            *status("PREPARED"),
                            told("all PREPARED, and still serving"),
                            *decision("HOT_COMMIT"),
                            *steps("PARKED (epoch, q, s)"),
                            vote(),
                            both(
                                "all stand, or a peer has finished q already:",
                                stretch("in one poll()", plan.name, plan.steps[plan.staged :]),
                                *flip,
                                *committed,
                            ),
                            *status("DONE_COMMITTED"),
                            told("every rank is terminal"),
                            Message(_C, _A, "receipt"),
                            *first_step(),
                            both("the old memory goes beside the loop"),
                            both(
                                "RUNNING carries the last finished sequence:",
                                "no rank steps beside an old one",
                            ),
                        ),
                    ),
                    Branch(
                        NOT_STAGED,
                        (
                            Message(_C, _W, "command (epoch, q, HOT_ABORT)"),
                            both("drop what was staged", "nothing was touched: nobody waits for anybody"),
                            *status("DONE_KEPT"),
                            Message(_C, _A, "error: rank, action, cause"),
                        ),
                    ),
                ),
            ),
        ),
    )


def _failed_clear(begun: JointState, plans: Plans) -> tuple[Item, ...]:
    faulted, fault = walk(begun, WeightEvent.FAIL)
    _, again = walk(faulted, WeightEvent.CLEAR, KVEvent.CLEARED, WeightEvent.CLEARED)
    _, on = walk(begun, WeightEvent.ABORT, KVEvent.CLEARED, WeightEvent.CLEARED)
    return (
        Note((_R1,), ("an action raised", *fault)),
        Message(_R1, _W, "status FAILED, cause in its payload slot"),
        told("FAILED"),
        Message(_C, _W, "command (epoch, q, ABORT)"),
        *status("STOPPED_TOUCHED"),
        both("wait until every rank has stopped", "a clear that has begun is never taken back"),
        Note((_R0,), (f"plan {plans[PlanName.DISCARD].name}", *on)),
        Note((_R1,), (f"plan {plans[PlanName.DISCARD].name}", *again)),
        *status("DONE_CLEARED"),
        both("DONE_FAULTED where the teardown failed again"),
        Message(_C, _A, "error: rank, action, cause, remote traceback"),
    )


def _aborted_update(begun: JointState, plans: Plans) -> tuple[Item, ...]:
    _, dropped = walk(begun, WeightEvent.ABORT, WeightEvent.CLEARED)
    _, from_normal = walk(_SERVING, WeightEvent.UPDATE)
    in_place, _ = walk(_SERVING, WeightEvent.UPDATE)
    _, kept = walk(in_place, WeightEvent.ABORT, kept=True)
    return (
        Note((_R1,), ("an action raised", "weights stay UPDATING")),
        Message(_R1, _W, "status FAILED, cause in its payload slot"),
        told("FAILED"),
        Message(_C, _W, "command (epoch, q, ABORT)"),
        both("stop, undo what can be undone"),
        Message(_R0, _W, "status STOPPED_UNTOUCHED or STOPPED_TOUCHED"),
        Message(_R1, _W, "status STOPPED_UNTOUCHED or STOPPED_TOUCHED"),
        both("wait until every rank has stopped:", "the outcome is the group's"),
        Block(
            "alt",
            (
                Branch(
                    NOBODY_TOUCHED,
                    (both("an update in place:", *from_normal, *kept), *status("DONE_KEPT")),
                ),
                Branch(
                    SOMEBODY_TOUCHED,
                    (both(f"plan {plans[PlanName.DISCARD].name}", *dropped), *status("DONE_CLEARED")),
                ),
            ),
        ),
        both("DONE_FAULTED where the teardown failed"),
        Message(_C, _A, "error: rank, action, cause, remote traceback"),
    )
