"""What all dialogues have in common: a command, parking, votes, decisions, and walks through the tables.

Pieces of :mod:`.sequences`, each a few messages or one note. What the states do is never written down here:
:func:`walk` asks the tables and the joint rules, so a piece that they do not allow cannot be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.states.diagram.dialogue import RANKS, Block, Branch, Item, Message, Note, Participant
from wsm.states.diagram.model import PlanSummary, StepSummary
from wsm.states.joint import JointState, step
from wsm.states.table import Event
from wsm.states.vocabulary import WeightEvent

_A, _C, _W = Participant.CALLER, Participant.CONTROLLER, Participant.WORDS


def command(call: str, operation: str) -> tuple[Item, ...]:
    """The caller asks, the controller writes arguments and command word, the ranks see it."""
    return (
        Message(_A, _C, call),
        Message(_C, _W, "arguments in the payload slot of sequence q"),
        Message(_C, _W, f"command (epoch, q, {operation})"),
        *(Message(_W, rank, "a new sequence, seen by poll()", reading=True) for rank in RANKS),
        both("legal here? plan admits the policies?", "if not: status REFUSED, nothing has changed"),
    )


def drain_and_park() -> tuple[Item, ...]:
    """The ranks drain, stand at a step boundary, and vote on it."""
    return (
        *status("DRAINING"),
        both("admit nothing new, keep stepping until", "the in-flight policy is satisfied"),
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


def work(plan: PlanSummary) -> tuple[Item, ...]:
    """The ranks run a plan; its collective actions are voted on."""
    names = ", ".join(f"{each.name}{'*' if each.collective else ''}" for each in plan.steps)
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


def stretch(when: str, plan: str, steps: Sequence[StepSummary]) -> str:
    """One line: a part of a plan that runs in one go."""
    return f"plan {plan}, {when}: {', '.join(step.name for step in steps)}"


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
