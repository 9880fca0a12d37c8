"""The dialogues between caller, controller, supervisor, words and ranks: commands, and what a death leads to.

The order of the words is the protocol's: a test drives the protocol's own code and compares. What the states
do is never written down here: :func:`walk` asks the tables and the joint rules, so what they do not allow
cannot be drawn. First the dialogues, then the pieces that they share. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from drawing.dialogues import RANKS, Block, Branch, Dialogue, Item, Message, Note, Participant
from wsm.actions.base import Action, Plan, Plans
from wsm.states.joint import START, JointState, step
from wsm.states.plan_key import CLEAR, DISCARD, HOT, REJOIN, UPDATE
from wsm.states.table import Event
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState

_A, _C, _W = Participant.CALLER, Participant.CONTROLLER, Participant.WORDS
_S = Participant.SUPERVISOR
_R0, _R1 = RANKS
_SERVING = JointState(WeightState.NORMAL, KVState.NORMAL)

#: Conditions of the choices, by which a test picks its way.
PREPARED_BY_ALL = "all are PREPARED with matching manifests"
NOT_PREPARED = "one FAILED, REFUSED or died, manifests differ, or the caller gave up"
CLEARED_BY_ALL = "all are cleared"
NOT_CLEARED = "one FAILED or REFUSED, died, or the deadline passed"
NONE_TOUCHED = "no rank touched its weights"
SOME_TOUCHED = "some rank did, or this one held nothing"
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
            *drain_and_park(plans.named(CLEAR)),
            *accept(began),
            *work(plans.named(CLEAR)),
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
                    Branch(NOT_CLEARED, _failed_clear(begun)),
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
            *drain_and_park(plans.named(UPDATE)),
            *accept(began),
            *work(plans.named(UPDATE)),
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
                            both(*committed, f"then {_listed(plans.named(UPDATE).commit)}"),
                            *status("DONE_COMMITTED"),
                            told("every rank is terminal"),
                            Message(_C, _A, "receipt"),
                            *first_step(),
                        ),
                    ),
                    Branch(NOT_PREPARED, _aborted_update(begun)),
                ),
            ),
        ),
    )


def hot_update_dialogue(plans: Plans) -> Dialogue:
    """Return the dialogue of a hot update, staged while the ranks serve."""
    plan = plans.named(HOT)
    flipped, flip = walk(_SERVING, WeightEvent.UPDATE, KVEvent.UPDATE, KVEvent.REBUILT, WeightEvent.PREPARED)
    _, committed = walk(flipped, WeightEvent.COMMIT)
    return Dialogue(
        "sequence_hot_update",
        "hot update, staged beside the weights that serve",
        (
            *command("hot update(version)", "HOT_UPDATE"),
            both("refused too where a second version does not fit"),
            *status("DRAINING"),
            both(stretch("beside the loop", plan.name, plan.staging)),
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
                            both(f"{_listed(plan.before_parking)}: admit nothing, drain"),
                            *steps("PARKED (epoch, q, s)"),
                            vote(),
                            both(
                                "all stand, or a peer has finished q already:",
                                stretch("in one poll()", plan.name, plan.flip),
                                *flip,
                                *committed,
                                f"then {_listed(plan.commit)}",
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
                            both("drop what was staged", "nothing was touched: no rank waits for another"),
                            *status("DONE_KEPT"),
                            Message(_C, _A, "error: rank, action, cause"),
                        ),
                    ),
                ),
            ),
        ),
    )


#: Conditions of the choices about a lost rank.
GIVEN_BACK = "rank 0 holds nothing any more"
NOT_GIVEN_BACK = "its teardown failed"


def rank_loss_dialogue(plans: Plans) -> Dialogue:
    """Return the dialogue of a death: the epoch ends, and another one begins with nothing held."""
    leaving, leave = walk(_SERVING, WeightEvent.CLEAR, KVEvent.CLEAR)
    gone, released = walk(leaving, KVEvent.CLEARED, WeightEvent.CLEARED)
    _, lost = walk(gone, KVEvent.LOST, WeightEvent.LOST)
    _, fault = walk(leaving, WeightEvent.FAIL)
    joins = (Message(_R0, _W, "step PARKED (epoch+1, 0, 0)"), Message(_R0, _W, "status ATTACHED"))
    return Dialogue(
        "sequence_rank_loss",
        "a rank dies while the group serves",
        (
            Note((_R1,), ("is killed",)),
            Note((_R0,), ("its step raises: a peer is gone",)),
            Message(_R0, _W, "step BROKEN (epoch, q, n)"),
            Note((_S,), ("reaps the process",)),
            Block(
                "opt",
                (
                    Branch(
                        "a command is undecided",
                        (Message(_S, _W, "its decision: COMMIT if all are PREPARED, else ABORT"),),
                    ),
                ),
            ),
            Message(_S, _W, "committed (q, what is to be restored), if it says another"),
            Message(_S, _W, "command (epoch+1, q, NONE)"),
            Message(_W, _R0, "a newer epoch, seen by poll()", reading=True),
            Note(
                (_R0,),
                (
                    "still in the old epoch, one action per poll():",
                    f"plan {REJOIN}: {_listed(plans.named(REJOIN).actions)}",
                    *leave,
                    f"plan {DISCARD}: {_listed(plans.named(DISCARD).actions)}",
                ),
            ),
            Block(
                "alt",
                (
                    Branch(GIVEN_BACK, (Note((_R0,), (*released, *lost)), *joins)),
                    Branch(
                        NOT_GIVEN_BACK,
                        (
                            Note((_R0,), (*fault, "writes no word of the new epoch")),
                            Note((_S,), ("ends it, and raises", "the epoch once more")),
                        ),
                    ),
                ),
            ),
            Message(_S, _R1, "starts another process"),
            Note((_R1,), ("holds nothing",)),
            Message(_R1, _W, "step PARKED (epoch+1, 0, 0)"),
            Message(_R1, _W, "status ATTACHED"),
            Message(_W, _S, "all have joined the epoch", reading=True),
        ),
    )


def restore_dialogue(plans: Plans) -> Dialogue:
    """Return the dialogue of a restore: an update of the committed version, and no newer one."""
    begun, began = walk(START, WeightEvent.UPDATE)
    ready, rebuilt = walk(begun, KVEvent.UPDATE, KVEvent.REBUILT)
    prepared, finished = walk(ready, WeightEvent.PREPARED)
    _, committed = walk(prepared, WeightEvent.COMMIT)
    _, dropped = walk(begun, WeightEvent.ABORT, WeightEvent.CLEARED)
    return Dialogue(
        "sequence_restore",
        "a new epoch restores what was served",
        (
            Note(
                (_S,),
                ("the committed word names a version:", "it is loaded again, verified,", "and no newer one"),
            ),
            *command("restore()", "UPDATE", by=_S),
            *drain_and_park(plans.named(UPDATE)),
            *accept(began),
            *work(plans.named(UPDATE)),
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
                            both(*committed, f"then {_listed(plans.named(UPDATE).commit)}"),
                            *status("DONE_COMMITTED"),
                            told("every rank is terminal"),
                            Message(_C, _S, "receipt: the group serves again"),
                            *first_step(),
                        ),
                    ),
                    Branch(
                        NOT_PREPARED,
                        (
                            Message(_R1, _W, "status FAILED, cause in its payload slot"),
                            told("FAILED"),
                            Message(_C, _W, "command (epoch, q, ABORT)"),
                            *status("STOPPED_UNTOUCHED or STOPPED_TOUCHED"),
                            both(f"plan {DISCARD}", *dropped),
                            *status("DONE_CLEARED"),
                            Message(_C, _S, "error: rank, action, cause"),
                            Note((_S,), ("tries again with growing delays,", "then gives up, visibly")),
                        ),
                    ),
                ),
            ),
        ),
    )


def _failed_clear(begun: JointState) -> tuple[Item, ...]:
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
        Note((_R0,), (f"plan {DISCARD}", *on)),
        Note((_R1,), (f"plan {DISCARD}", *again)),
        *status("DONE_CLEARED"),
        both("DONE_FAULTED where the teardown failed again"),
        Message(_C, _A, "error: rank, action, cause, remote traceback"),
    )


def _aborted_update(begun: JointState) -> tuple[Item, ...]:
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
                    NONE_TOUCHED, (both("an update in place:", *from_normal, *kept), *status("DONE_KEPT"))
                ),
                Branch(
                    SOME_TOUCHED,
                    (both(f"plan {DISCARD}", *dropped), *status("DONE_CLEARED")),
                ),
            ),
        ),
        both("DONE_FAULTED where the teardown failed"),
        Message(_C, _A, "error: rank, action, cause, remote traceback"),
    )


def command(call: str, operation: str, *, by: Participant = _A) -> tuple[Item, ...]:
    """A caller asks, the controller writes arguments and command word, the ranks see it."""
    return (
        Message(by, _C, call),
        Message(_C, _W, "arguments in the payload slot of sequence q"),
        Message(_C, _W, f"command (epoch, q, {operation})"),
        *(Message(_W, rank, "a new sequence, seen by poll()", reading=True) for rank in RANKS),
        both("legal here? plan admits the policies?", "if not: status REFUSED, nothing has changed"),
    )


def drain_and_park(plan: Plan) -> tuple[Item, ...]:
    """The ranks drain, stand at a step boundary, and vote on it."""
    return (
        *status("DRAINING"),
        both(
            f"{_listed(plan.before_parking)}: admit nothing,", "step until the in-flight policy is satisfied"
        ),
        *steps("PARKED (epoch, q, s)"),
        *status("PARKING"),
        vote(),
    )


def vote() -> Note:
    """The rule by which ranks agree on the step after which they stop."""
    return both(
        "park and vote, on the other ranks' step words:",
        "a peer in a later step that has not finished q: join that step, park again",
        "all PARKED for q at the same s: accept",
    )


def accept(began: tuple[str, ...]) -> tuple[Item, ...]:
    """The transition begins on every rank."""
    return (both("accepted: only a decision or a new epoch ends this", *began), *status("ACCEPTED"))


def work(plan: Plan) -> tuple[Item, ...]:
    """The ranks run a plan; its collective actions are voted on."""
    names = ", ".join(f"{each.name}{'*' if each.collective else ''}" for each in plan.actions)
    return (
        both(f"plan {plan.name}: {names}" if names else f"plan {plan.name}"),
        Block(
            "loop",
            (
                Branch(
                    "each action k in order, one per poll()",
                    (
                        *status("RUNNING, in action k"),
                        Block(
                            "opt",
                            (
                                Branch(
                                    "collective (*)",
                                    (
                                        both(
                                            "the word is the vote READY(k) too:",
                                            "entered only when every rank has voted",
                                        ),
                                    ),
                                ),
                            ),
                        ),
                        both("run it, then measure that it is done"),
                    ),
                ),
            ),
        ),
    )


def stretch(when: str, plan: str, steps: Sequence[Action]) -> str:
    """One line: a part of a plan that runs in one go."""
    return f"plan {plan}, {when}: {', '.join(step.name for step in steps)}"


def _listed(actions: Sequence[Action]) -> str:
    return ", ".join(action.name for action in actions)


def decision(operation: str) -> tuple[Item, ...]:
    """The controller decides in the command word, then stores the committed version."""
    return (
        Message(_C, _W, f"command (epoch, q, {operation}), final"),
        Message(_C, _W, "committed (q, version)"),
        *(Message(_W, rank, operation, reading=True) for rank in RANKS),
    )


def first_step() -> tuple[Item, ...]:
    """The ranks serve again."""
    return steps("RUNNING (epoch, q, s+1)")


def status(code: str) -> tuple[Item, ...]:
    """Every rank stores a status word."""
    return tuple(Message(rank, _W, f"status {code}") for rank in RANKS)


def steps(word: str) -> tuple[Item, ...]:
    """Every rank stores a step word."""
    return tuple(Message(rank, _W, f"step {word}") for rank in RANKS)


def told(text: str) -> Message:
    """The controller reads something off the status words."""
    return Message(_W, _C, text, reading=True)


def both(*lines: str) -> Note:
    """Something that every rank does."""
    return Note(RANKS, lines)


def walk(joint: JointState, *events: Event, kept: bool = False) -> tuple[JointState, tuple[str, ...]]:
    """Take events in by the tables; return where they lead, and one line for each transition."""
    lines = []
    for event in events:
        row, joint = step(joint, event, kept=kept)
        machine = "weights" if isinstance(event, WeightEvent) else "KV cache"
        guard = "" if row.guard is None else f" [{row.guard.value}]"
        lines.append(f"{machine}: {row.source.name} {event.value}{guard} {row.dest.name}")
    return joint, tuple(lines)
