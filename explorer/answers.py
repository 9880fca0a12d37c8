"""What no answer of the protocol, and no table, may be: said once more, without them.

What a participant is told when it looks is checked here. Each memory is also shown commands of the past, and
one that skips ahead: the first must move it nowhere, the second must be an error for all to see. Each state
of the machines on the way is shown every event: the moves fire what a worker fires, in its order, and would
never miss a rule that is missing from the tables.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

from explorer.errors import RuleBrokenError
from wsm.states import joint as tables
from wsm.states import rank as protocol
from wsm.states.errors import IllegalTransitionError, ProtocolViolationError
from wsm.states.joint import JointState
from wsm.states.phases import Do, Phase, RankState, Todo
from wsm.states.table import Event
from wsm.states.view import View
from wsm.states.vocabulary import KVEvent, KVState, WeightEvent, WeightState
from wsm.states.words import CommandWord, Operation, StatusCode, StepKind

#: What participants say that are not whole any more, or may not be.
_TOUCHED = frozenset((StatusCode.STOPPED_TOUCHED, StatusCode.DONE_CLEARED, StatusCode.DONE_FAULTED))

_QUIET = frozenset((Todo.WAIT, Todo.SERVE, Todo.JOIN))


def look(state: RankState, view: View, *, first: bool) -> Do:
    """Ask the protocol; the `first` time with a memory, show it the other commands too."""
    do = protocol.step(state, view)
    _check_ends_alike(state, do, view)
    _check_steps_can_end(do, view)
    _check_all_have_looked(do, view)
    if first:
        _check_other_commands(state, view)
    return do


def _check_ends_alike(before: RankState, do: Do, view: View) -> None:
    """Check how a participant that has stopped for an ABORT is told to end: it drops what one has touched."""
    after = do.move.state
    if before.phase is not Phase.STOPPED or after.phase is not Phase.SETTLING:
        return
    said = [word.code for word in view.statuses if word[:2] == (before.epoch, before.sequence)]
    if len(said) < len(view.statuses) or min(said) < StatusCode.STOPPED_UNTOUCHED:
        raise RuleBrokenError(
            rule="no rank ends an aborted command before all have said whether they touched anything",
            seen=f"it ends, and of {len(view.statuses)} these have stopped: {[code.name for code in said]}",
        )
    if after.touched and not _TOUCHED.intersection(said):
        raise RuleBrokenError(
            rule="what no rank has touched is kept",
            seen=f"it drops its weights, and the others say {[code.name for code in said]}",
        )


def _check_steps_can_end(do: Do, view: View) -> None:
    """Check that no rank is sent into a step that not all can enter any more."""
    if not {do.todo, do.meanwhile} & {Todo.SERVE, Todo.JOIN}:
        return
    for index, step in enumerate(view.steps):
        if step.epoch == do.move.state.epoch and step.kind is StepKind.BROKEN:
            raise RuleBrokenError(
                rule="no rank is sent into a step after one has raised in its epoch",
                seen=f"it may step, and step {step.step} has raised on rank {index}",
            )


def _check_all_have_looked(do: Do, view: View) -> None:
    """Check that no rank stages what another has not looked at yet: its files may be replaced in between.

    What is loaded in place is loaded where all stand for it, which they have looked at before; a rank that
    runs its next action may read an old word of a peer again.
    """
    key = do.move.state.epoch, do.move.state.sequence
    late = [index for index in range(len(view.steps)) if view.statuses[index][:2] != key]
    if late and do.todo is Todo.STAGE:
        raise RuleBrokenError(
            rule="no rank reads before all have looked at what they are to load",
            seen=f"it is told to {do.todo.value}, and rank {late[0]} has not begun the command",
        )


def _check_other_commands(state: RankState, view: View) -> None:
    """Show a participant commands of the past, and one that skips ahead."""
    last = max(state.done, state.sequence)
    old = [CommandWord(state.epoch - 1, last, Operation.UPDATE)] if state.epoch > 1 else []
    if last:
        past = (Operation.CLEAR, Operation.ABORT, Operation.COMMIT)
        old += [CommandWord(state.epoch, last - 1, operation) for operation in past]
    for command in old:
        move = protocol.advance(state, replace(view, command=command))
        if move.state != state or move.todo not in _QUIET or move.step or move.status:
            raise RuleBrokenError(
                rule="a command of the past moves no rank",
                seen=f"it takes {tuple(command)} in and does {move.todo.value}",
            )
    if state.phase is Phase.IDLE or view.command.epoch != state.epoch:
        return
    skipping = CommandWord(state.epoch, state.sequence + 1, Operation.CLEAR)
    try:
        protocol.advance(state, replace(view, command=skipping))
    except ProtocolViolationError:
        return
    raise RuleBrokenError(
        rule="a command that begins before the last one is over is an error for all to see",
        seen=f"{state.phase.value} with sequence {state.sequence}, it takes {tuple(skipping)} for it",
    )


# -- the tables ------------------------------------------------------------------------------------

_KV_AT_WORK = (KVState.UPDATING, KVState.CLEARING)
_LEAVES_PREPARED = (WeightEvent.COMMIT, WeightEvent.ABORT, WeightEvent.LOST, KVEvent.LOST)
_EMPTY = "a new epoch begins with nothing held"
_AFTER_CLEARING = (WeightState.CLEARING, WeightState.CLEARED, WeightState.FAULTED)


@lru_cache(maxsize=1 << 10)
def check_refusals(joint: JointState) -> None:
    """Show a joint state every event.

    Raises
    ------
    RuleBrokenError
        If one leads where none may lead.
    """
    for event, kept, kv_kept in product((*WeightEvent, *KVEvent), (True, False), (True, False)):
        try:
            _, after = tables.step(joint, event, kept=kept, kv_kept=kv_kept)
        except IllegalTransitionError:
            continue
        wrong = _of_weights(joint, event, after, kept=kept) or _of_kv(joint, event, after, kv_kept=kv_kept)
        if wrong:
            raise RuleBrokenError(rule=wrong, seen=f"in ({joint}) {event.value!r} leads to ({after})")


def _of_weights(joint: JointState, event: Event, after: JointState, *, kept: bool) -> str:
    """Say which rule about the weights is broken; empty: none."""
    was, now = joint.weights, after.weights
    if event is WeightEvent.LOST:
        return "" if now is WeightState.CLEARED else _EMPTY
    committed = was is WeightState.PREPARED and event is WeightEvent.COMMIT
    held = event is WeightEvent.ABORT and kept and joint.had_version
    serves_anew = now is WeightState.NORMAL and was is not WeightState.NORMAL
    said_free = now is WeightState.CLEARED and was is WeightState.CLEARING
    rules = {
        "only a decision or a new epoch ends PREPARED": was is WeightState.PREPARED
        and event not in _LEAVES_PREPARED,
        "a teardown that has begun is never taken back": was is WeightState.CLEARING
        and now not in _AFTER_CLEARING,
        "only a teardown leads out of FAULTED": was is WeightState.FAULTED
        and now not in (WeightState.FAULTED, WeightState.CLEARING),
        "CLEARED is said when all that was to go is free": said_free and joint.kv in _KV_AT_WORK,
        "only what was prepared, or was held before, is served": serves_anew and not (committed or held),
    }
    return next((rule for rule, broken in rules.items() if broken), "")


def _of_kv(joint: JointState, event: Event, after: JointState, *, kv_kept: bool) -> str:
    """Say which rule about the KV cache is broken; empty: none."""
    was, now = joint.kv, after.kv
    if event is KVEvent.LOST:
        return "" if now is KVState.CLEARED else _EMPTY
    prepared = after.weights is WeightState.PREPARED
    begins = now is KVState.UPDATING and was is not KVState.UPDATING
    replaces = event is WeightEvent.UPDATE and was is KVState.NORMAL and not kv_kept
    rules = {
        "all that can fail lies behind a PREPARED rank": prepared and now in _KV_AT_WORK,
        "a PREPARED rank's KV cache holds nothing of other weights": prepared and joint.kv_stale,
        "a KV cache is NORMAL once it was built": now is KVState.NORMAL
        and was is not now
        and event is not KVEvent.REBUILT,
        "nothing is built beside a teardown": begins
        and joint.weights in (WeightState.CLEARING, WeightState.FAULTED),
        "what the old weights computed is stale beside new ones": replaces and not after.kv_stale,
    }
    return next((rule for rule, broken in rules.items() if broken), "")
