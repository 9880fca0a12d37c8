"""The one thing that keeps a group from serving, why it is so, and what to do. Pure; the first rule counts.

``wsm status``, ``wsm explain`` and the errors of controllers say what these rules find. An advice names the
commands that it means, with their version; the tests carry them out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from wsm.command import SOURCE_OVERWRITTEN
from wsm.labels import is_unnamed
from wsm.states.vocabulary import ALL_TAGS, OnLease, Tag, sentence_of
from wsm.states.words import Decider, Operation, StatusCode
from wsm.status._advice import (
    Advice,
    Finding,
    controller_stopped,
    decided_soon,
    load_advice,
    look_into,
    start_again,
    supervised_advice,
    then_update,
    updates,
)
from wsm.status.facts import (
    ALIVE,
    DEAD,
    NEVER,
    STOPPED,
    GroupFacts,
    RankFacts,
    who,
    whose_processes,
)
from wsm.status.rank_progress import (
    asked,
    current_failures,
    first_failure,
    has_failed,
    in_sentence,
    is_current,
    is_done,
    is_over,
    overdue_s,
    version_before,
    waited_for,
)

#: What no rank would see whose loop looks at its engine's words alone.
_REFUSED_BY_LOOPS = ("wsm clear", "wsm update", "wsm hold", "wsm release")

_ASK_THE_ENGINE = Advice(
    "Its ranks look at their engine's words alone: ask the engine for it. A command of another process is "
    "refused until manager.poll() stands at the top of the engine's loop."
)


def find(group: GroupFacts) -> Finding:
    """Return the most important thing about a group."""
    found = next(filter(None, (rule(group) for rule in _RULES)), Finding("unknown", "does not serve"))
    commands = [command for one in found.advice for command in one.commands]
    if group.obeys_engine_alone and any(command.startswith(_REFUSED_BY_LOOPS) for command in commands):
        return replace(found, advice=(*found.advice, _ASK_THE_ENGINE))
    return found


# -- the rules, in the order of weight -----------------------------------------------------------


def _unreadable(group: GroupFacts) -> Finding | None:
    return Finding("unreadable", f"cannot be read: {group.problem}") if group.problem else None


def _damaged(group: GroupFacts) -> Finding | None:
    if not group.damaged:
        return None
    return Finding(
        "damaged",
        f"has words that no process of it can have written: {'; '.join(group.damaged)}",
        advice=(
            Advice("A process outside of the group has written into its segment, or its memory is faulty."),
            Advice("End all processes of the group, keep the segment and the journals, and start it again."),
        ),
    )


def _starting(group: GroupFacts) -> Finding | None:
    absent = [rank.number for rank in group.ranks if rank.life == NEVER]
    if not absent or any(rank.life == DEAD for rank in group.ranks):
        return None
    starter = group.starter_pid
    if starter is not None:
        advice = Advice(f"Process {starter} starts the ranks: wait; their logs say what they wait for.")
    elif len(absent) == len(group.ranks):
        advice = Advice("Start the workers.")
    else:
        advice = Advice(f"Start {_names(absent)}; if it was started, its log says what it waits for.")
    waits = "no rank has attached yet"
    if len(absent) < len(group.ranks):
        waits = f"{_names(absent)} {_has(absent)} not attached yet"
    return Finding("starting", f"is starting: {waits}", advice=(advice,), ranks=tuple(absent))


def _dead(group: GroupFacts) -> Finding | None:
    dead = [rank.number for rank in group.ranks if rank.life == DEAD]
    if not dead:
        return None
    supervised = supervised_advice(group, f"replaces {_names(dead)}")
    if len(dead) == len(group.ranks):
        return Finding(
            "dead",
            "is dead: none of its processes lives",
            advice=supervised or (Advice(f"Start the group again.{then_update(group)}", updates(group)),),
            ranks=tuple(dead),
            before=version_before(group),
        )
    verb = "is" if len(dead) == 1 and not _several(dead) else "are"
    return Finding(
        "rank-lost",
        f"has lost {_names(dead)}, and needs every rank",
        f"{whose_processes(dead)} {verb} gone",
        advice=supervised or (start_again(group),),
        ranks=tuple(dead),
        before=version_before(group),
    )


def _stopped(group: GroupFacts) -> Finding | None:
    stopped = [rank for rank in group.ranks if rank.life == STOPPED]
    if not stopped:
        return None
    ranks = tuple(rank.number for rank in stopped)
    pids = " ".join(str(rank.pid) for rank in stopped)
    go_on = f"kill -CONT {pids}"
    if group.supervisor_life == ALIVE:
        advice = Advice(
            f"Let it go on ('{go_on}'), or end it ('kill -9 {pids}'): the supervisor (process "
            f"{group.supervisor_pid}) replaces it then.",
            (go_on, f"kill -9 {pids}"),
        )
    else:
        advice = Advice(
            f"Let it go on ('{go_on}'). No process replaces it: if it is ended, the whole group has to be "
            "started again.",
            (go_on,),
        )
    return Finding(
        "rank-stopped",
        f"waits for {_names(ranks)}, whose process is stopped",
        "" if is_over(group) else _progress(group),
        advice=(advice,),
        ranks=ranks,
        before=version_before(group),
    )


def _progress(group: GroupFacts) -> str:
    """Say of a command that is not over how far it is."""
    if group.command is not None and group.command.operation.is_abort:
        return f"the {asked(group)} is aborted, and not taken back yet"
    if group.command is not None and group.command.operation.is_commit:
        return f"the {asked(group)} is decided, and not over"
    return f"the {asked(group)} is under way"


def _joining(group: GroupFacts) -> Finding | None:
    command = group.command
    if command is None:
        return None
    late = [rank.number for rank in group.ranks if rank.status is None or rank.status.epoch < command.epoch]
    if not late:
        return None
    if command.epoch == 1:
        return Finding(
            "starting",
            f"is starting: {_names(late)} {_has(late)} not joined yet",
            advice=(Advice("Wait; its log says what it is doing."),),
            ranks=tuple(late),
        )
    return Finding(
        "joining",
        f"waits for {_names(late)} to join epoch {command.epoch}",
        advice=(
            Advice(
                "A living rank releases what it held before it joins; its last entries say what it is in."
            ),
        ),
        ranks=tuple(late),
        before=version_before(group),
    )


def _broken(group: GroupFacts) -> Finding | None:
    broken = [rank.number for rank in group.ranks if rank.is_broken and _is_here(rank, group)]
    if not broken:
        return None
    advice = supervised_advice(group, f"replaces {_names(broken)}, which begins a new epoch") or (
        start_again(group),
    )
    return Finding(
        "step-broken",
        f"cannot step: a step raised on {_names(broken)}",
        advice=(*advice, Advice("The log of that rank names what its step raised.")),
        ranks=tuple(broken),
        before=version_before(group),
    )


def _is_here(rank: RankFacts, group: GroupFacts) -> bool:
    """Whether a rank's step is of the present epoch: one that broke in another is answered by this one."""
    return rank.step is not None and group.command is not None and rank.step.epoch == group.command.epoch


def _under_way(group: GroupFacts) -> Finding | None:
    command = group.command
    if command is None or command.operation is Operation.NONE:
        return None
    open_ranks = [rank for rank in group.ranks if not is_done(rank, group)]
    if not open_ranks:
        return None
    operation, what = command.operation, asked(group)
    late = waited_for(group)
    meanwhile = f"serves version {group.committed.version}, and " if group.serving else ""
    by = f" of process {group.controller_pid}" if group.controller_pid else ""
    does = f"carries out the {what}{by}"
    if operation.is_commit:
        does = f"ends the {what}{by}, which is decided"
    elif operation.is_abort:
        does = f"takes back the {what}{by}{_why_aborted(group)}"
    state = f"{meanwhile}{does}, and waits for {in_sentence(late)}"
    ranks = tuple(late)
    overdue = [rank for rank in open_ranks if overdue_s(rank) > 0]
    if overdue:
        worst = max(overdue, key=overdue_s)
        action = worst.action.name if worst.action is not None else "an action"
        return Finding(
            "action-overdue",
            f"{meanwhile}{does}, and waits for {who(worst.number)}, which is past the deadline of {action}",
            advice=(look_into(worst, group),),
            ranks=(worst.number,),
        )
    stopped = group.controller_stopped and not operation.is_decision
    holds = f"{meanwhile}has prepared the {what}"
    held = _decision_held(group, holds)
    if stopped:
        ends = controller_stopped(group, f"{meanwhile}{does}")
        held = ends if held is None else replace(held, advice=ends.advice)
    if held is not None:
        return held
    if group.role_known and group.controller_pid is None and not operation.is_decision:
        return Finding(
            "controller-gone",
            f"{meanwhile}is left with the {what} undecided: its controller is gone",
            advice=(decided_soon(group),),
            ranks=ranks,
        )
    names = _names(ranks)
    if not operation.is_decision and any(has_failed(rank, group) for rank in open_ranks):
        state, names = (
            f"{meanwhile}{does}{_why_aborted(group)}, and waits for its controller to decide",
            "the controller",
        )
    return Finding(
        "under-way",
        state,
        advice=(Advice(f"Wait; if it does not end, see the log of {names}."),),
        ranks=ranks,
    )


def _uncommitted(group: GroupFacts) -> Finding | None:
    command = group.command
    if command is None or not command.operation.is_commit or group.committed.sequence == command.sequence:
        return None
    does = f"has decided the {asked(group)}, and its version is not written yet"
    if group.controller_stopped:
        return controller_stopped(group, does)
    return Finding("uncommitted", does, advice=(decided_soon(group, "writes"),))


def _faulted(group: GroupFacts) -> Finding | None:
    faulted = [rank.number for rank in group.ranks if rank.weights == "FAULTED"]
    if not faulted:
        return None
    clear = f"wsm clear {group.name}"
    commands = (clear, *updates(group))
    advice = [Advice(f"'{clear}' tries it again on all ranks.{then_update(group)}", commands)]
    if group.supervisor_life == ALIVE:
        advice = [
            Advice(
                f"The supervisor (process {group.supervisor_pid}) clears the group again by itself, a few "
                f"times, and then replaces the rank; wait, or do it by hand: '{clear}'.{then_update(group)}",
                commands,
            )
        ]
    return Finding(
        "faulted",
        f"could not release its memory on {_names(faulted)}",
        _failed(group),
        advice=tuple(advice),
        ranks=tuple(faulted),
        before=version_before(group),
    )


def _record_lost(group: GroupFacts) -> Finding | None:
    advice = Advice(f"'wsm update {group.name} --version VERSION --force' writes its record anew.")
    told = "does not know any more which version it has committed"
    return Finding("record-lost", told, group.record_lost, advice=(advice,)) if group.record_lost else None


def _awaited(group: GroupFacts) -> Finding | None:
    if group.awaited is None:
        return None
    ranks, where, seen = group.awaited
    advice = tuple(look_into(rank, group) for rank in group.ranks if rank.number in ranks)
    return Finding("rank-missing", f"waits for {_names(ranks)} in {where}", seen, advice=advice, ranks=ranks)


def _serving(group: GroupFacts) -> Finding | None:
    if not group.serving:
        return None
    version = group.committed.version
    unproven = ", unverified: its source names no version" if version and is_unnamed(version) else ""
    return Finding("serving", f"serves version {version}{unproven}", _kept(group))


def _decision_held(group: GroupFacts, state: str) -> Finding | None:
    """Say whose decision a command waits for that its controller does not decide; None: it need not."""
    command, arguments = group.command, group.arguments
    if command is None or command.operation.is_decision or command.decider is Decider.CONTROLLER:
        return None
    if any(rank.code(command) is not StatusCode.PREPARED for rank in group.ranks):
        return None
    abort = f"wsm abort {group.name}"
    if command.decider is Decider.OUTSIDE:
        relay, end = group.controller_pid, f"kill -9 {group.controller_pid}"
        stands = f", and is to be said by process {relay}" if relay is not None else ""
        stands += ", which is stopped" if relay is not None and group.controller_stopped else ""
        first = f"end that process ('{end}'), then " if relay is not None else ""
        then = Advice(
            f"Wait until it is known; {first}'{abort}' gives it up, and it may have been decided to commit "
            "it.",
            (abort,) if relay is None else (end, abort),
        )
        return Finding(
            "decided-outside",
            f"{state}, and waits for a decision that is made outside{stands}",
            _staged_in_words(group),
            advice=(then,),
        )
    lease_s = 0.0 if arguments is None else arguments.lease_s or 0.0
    ends = f"It is aborted {lease_s:g} s after all ranks had prepared it."
    because = "; ".join(part for part in (_staged_in_words(group), _decision_lease(group)) if part)
    if group.controller_pid is not None:
        pid = f"process {group.controller_pid}"
        then = Advice(f"Wait until {pid} commits or aborts it, or end that process, which aborts it. {ends}")
        stands = ", which is stopped" if group.controller_stopped else ""
        return Finding(
            "decision-held", f"{state}, and waits for the decision of {pid}{stands}", because, (then,)
        )
    if arguments is None or not arguments.leased:
        return None
    commit = f"wsm commit {group.name} --request-id {arguments.request_id}"
    then = Advice(f"'{commit}' serves it, '{abort}' takes it back. {ends}", (commit, abort))
    return Finding("decision-held", f"{state}, and waits for its caller's decision", because, (then,))


def _staged_in_words(group: GroupFacts) -> str:
    """Say how much the ranks keep prepared until the decision; empty: nothing is known of it."""
    amounts = sorted(rank.staged_bytes / 2**20 for rank in group.ranks if not rank.helper)
    if not any(amounts):
        return ""
    least, most = f"{amounts[0]:.1f}", f"{amounts[-1]:.1f}"
    return f"{least if least == most else f'{least} to {most}'} MiB are staged on each rank"


def _decision_lease(group: GroupFacts) -> str:
    left_s = group.decision_left_s
    if left_s is None:
        return ""
    return f"its lease lasts {left_s:.0f} s more" if left_s > 0 else f"its lease ran out {-left_s:.0f} s ago"


class _HoldInWords(NamedTuple):
    """What there is to say of a hold.

    Parameters
    ----------
    state : str
        What the group has and who holds it, as the end of a sentence about it.
    because : str
        What is known of the lease; empty: it has none.
    advice, command : str
        What lets it serve again; empty where the group lacks something, which an update brings first.
    """

    state: str
    because: str
    advice: str = ""
    command: str = ""


def _hold_in_words(group: GroupFacts) -> _HoldInWords | None:
    """Say who holds the group; None: it is open, or something else is to be said of it first."""
    held = {(rank.weights, rank.kv) for rank in group.ranks if not rank.helper}
    if group.hold is None or any(weights == "FAULTED" for weights, _ in held) or len(held) != 1:
        return None
    owner = str(group.hold.get("owner", "a caller without a name"))
    if held != {("NORMAL", "NORMAL")}:
        return _HoldInWords(f"is held by {owner}, and lacks what a step needs", _lease_in_words(group, owner))
    command = f"wsm release {group.name} --owner {shlex.quote(owner)}"
    state = f"has version {group.committed.version}, and is held by {owner}"
    return _HoldInWords(state, _lease_in_words(group, owner), f"'{command}' lets it serve again.", command)


def _lease_in_words(group: GroupFacts, owner: str) -> str:
    left_s = group.lease_left_s
    if left_s is None or group.hold is None:
        return ""
    if left_s > 0:
        return f"its lease lasts {left_s:.0f} s more"
    stays = group.hold.get("on_lease") == OnLease.STAY.value
    then = "it stays held" if stays else "what is whole serves again"
    return f"the lease of {owner} ran out {-left_s:.0f} s ago; {then}"


def _held(group: GroupFacts) -> Finding | None:
    told = _hold_in_words(group)
    if told is None:
        return None
    advice = (Advice(told.advice, (told.command,)),) if told.command else load_advice(group)
    before = None if told.command else version_before(group)
    return Finding("held", told.state, told.because, advice=advice, before=before)


def _half(group: GroupFacts) -> Finding | None:
    held = {(rank.weights, rank.kv) for rank in group.ranks if not rank.helper}
    if held == {("NORMAL", "CLEARED")} and group.obeys_engine_alone:
        return Finding(
            "engine-has-kv-cache",
            f"holds version {group.committed.version}",
            "its engine has built KV cache and graphs itself, which count from its first clear or update on",
        )
    if held == {("NORMAL", "CLEARED")}:
        command = f"wsm update {group.name} --tags kv_cache"
        return Finding(
            "without-kv-cache",
            f"holds version {group.committed.version}, and does not serve without a KV cache",
            _ended(group),
            advice=(Advice(f"'{command}' rebuilds the KV cache, and then it serves.", (command,)),),
        )
    if held == {("CLEARED", "NORMAL")}:
        return Finding(
            "without-weights",
            "holds its KV cache, and does not serve without weights",
            _ended(group),
            advice=load_advice(group),
            before=version_before(group),
        )
    return None


def _cleared(group: GroupFacts) -> Finding | None:
    if any(rank.weights != "CLEARED" for rank in group.ranks if not rank.helper):
        return None
    return Finding(
        "cleared",
        "holds no weights",
        _ended(group),
        advice=load_advice(group),
        before=version_before(group),
    )


def _mixed(group: GroupFacts) -> Finding | None:
    states = ", ".join(f"{who(rank.number)} {rank.weights}, KV cache {rank.kv}" for rank in group.ranks)
    clear = f"wsm clear {group.name}"
    return Finding(
        "mixed",
        "holds different things on its ranks",
        states,
        advice=(
            Advice(f"'{clear}' brings the ranks together.{then_update(group)}", (clear, *updates(group))),
        ),
        before=version_before(group),
    )


_RULES: Sequence[Callable[[GroupFacts], Finding | None]] = (
    _unreadable,
    _damaged,
    _starting,
    _dead,
    _stopped,
    _broken,
    _joining,
    _under_way,
    _uncommitted,
    _record_lost,
    _awaited,
    _serving,
    _held,
    _faulted,
    _half,
    _cleared,
    _mixed,
)


def _ended(group: GroupFacts) -> str:
    """Say how the last command left the group as it is."""
    command = group.command
    if command is None:
        return ""
    if command.operation is Operation.NONE:
        if command.epoch == 1:
            return "nothing was loaded yet"
        owed = group.committed.version
        lost = f"epoch {command.epoch} began when a rank was lost"
        return lost if owed is None else f"{lost}, and version {owed} is not loaded again yet"
    if command.operation.is_abort:
        released = (
            "" if group.arguments is not None and group.arguments.clears else ", and every rank released"
        )
        kept = {tag for tag in (Tag.WEIGHTS, Tag.KV_CACHE) if _all_hold(group, tag)}
        what = sentence_of(ALL_TAGS - kept)
        return f"{_failed(group)}{f'{released} {what}' if released else ''}"
    if command.operation is Operation.CLEAR:
        by = f" ({group.request_id})" if group.request_id else ""
        return f"the last command, a {asked(group)}{by}, released {_released(group)}"
    return f"the last command was the {asked(group)}"


def _released(group: GroupFacts) -> str:
    tags = ALL_TAGS if group.arguments is None else group.arguments.tags
    return "them" if tags != {Tag.KV_CACHE} else "it"


def _all_hold(group: GroupFacts, tag: Tag) -> bool:
    states = {rank.weights if tag is Tag.WEIGHTS else rank.kv for rank in group.ranks if not rank.helper}
    return states == {"NORMAL"}


def _kept(group: GroupFacts) -> str:
    """Say of a group that serves how its last command ended, where that is not by bringing what is served."""
    command = group.command
    if command is None or not command.operation.is_abort:
        return ""
    no_fault = [rank for rank in group.ranks if _is_no_fault(rank, group)]
    if no_fault:
        return "the last update named no version, and the newest one is served already"
    return f"{_failed(group)}, and changed nothing"


def _failed(group: GroupFacts) -> str:
    """Say that the last command failed, on which rank and in what."""
    failure = first_failure(current_failures(group))
    if failure is None:
        return f"the {asked(group)} was aborted"
    rank = group.ranks[failure.report.rank]
    why = ", since its source was overwritten" if failure.report.error == SOURCE_OVERWRITTEN else ""
    if failure.refused:
        return f"the {asked(group)} was refused by {who(rank.number)}{why}"
    return f"the {asked(group)} failed on {who(rank.number)} in {failure.report.action}{why}"


def _why_aborted(group: GroupFacts) -> str:
    failure = first_failure(current_failures(group))
    if failure is None:
        return ""
    rank = group.ranks[failure.report.rank]
    verb = "was refused by" if failure.refused else "failed on"
    where = "" if failure.refused else f" in {failure.report.action}"
    return f", which {verb} {who(rank.number)}{where}"


def _is_no_fault(rank: RankFacts, group: GroupFacts) -> bool:
    return rank.failure is not None and rank.failure.is_no_fault and is_current(rank.failure, group)


def _several(ranks: Sequence[int]) -> bool:
    return len(ranks) > 1


def _has(ranks: Sequence[int]) -> str:
    return "have" if _several(ranks) else "has"


def _names(ranks: Sequence[int]) -> str:
    """List participants as in a sentence: ``ranks 0, 1 and the KV-cache process``."""
    numbers = [str(rank) for rank in ranks if who(rank).startswith("rank")]
    others = [who(rank) for rank in ranks if not who(rank).startswith("rank")]
    listed = [f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] if numbers else []
    return " and ".join([*listed, *others])
