"""The one thing that keeps a group from serving, and what to do about it: the first rule that fits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wsm.states.words import Operation, StatusCode, StepKind
from wsm.status.facts import GroupFacts, RankFacts, named

#: A headline, and what to do.
Verdict = tuple[str, tuple[str, ...]]


def verdict(group: GroupFacts) -> Verdict:
    """Return the headline about a group, and the advice that belongs to it."""
    return next(filter(None, (rule(group) for rule in _RULES)), ("does not serve", ()))


def serves(group: GroupFacts) -> bool:
    """Whether every rank may step."""
    command = group.command
    return (
        not group.problem
        and not group.damaged
        and bool(group.ranks)
        and command is not None
        and all(
            rank.life in ("alive", "unknown")
            and (rank.weights, rank.kv) == ("NORMAL", "NORMAL")
            and rank.status is not None
            and rank.status.epoch == command.epoch
            and not _is_broken(rank)
            for rank in group.ranks
        )
    )


def _unreadable(group: GroupFacts) -> Verdict | None:
    return (f"cannot be read: {group.problem}", ()) if group.problem else None


def _damaged(group: GroupFacts) -> Verdict | None:
    if not group.damaged:
        return None
    advice = (
        "Somebody who is no part of the group has written into its segment, or its memory is faulty.",
        "Stop every process of the group, keep the segment and the journals, and start the group again.",
    )
    return f"has words that nobody can have written: {'; '.join(group.damaged)}", advice


def _absent(group: GroupFacts) -> Verdict | None:
    absent = [rank.rank for rank in group.ranks if rank.life == "never"]
    if len(absent) == len(group.ranks):
        return "has no rank yet: nobody has attached", ("Start the workers.",)
    if absent:
        return f"waits for {named(absent)}, which never attached", (
            f"Start {named(absent)}; if it was started, its log says what it waits for.",
        )
    return None


def _dead(group: GroupFacts) -> Verdict | None:
    dead = [rank.rank for rank in group.ranks if rank.life == "dead"]
    if not dead:
        return None
    again = "Start the group again" + (
        f", or look whether its supervisor (process {group.owner_pid}) is about to replace it."
        if group.owner_lives
        else "; nobody who could replace a rank is alive."
    )
    advice = (again, *(f"Its last entries below say what {named([rank])} did when it died." for rank in dead))
    if len(dead) == len(group.ranks):
        return "is dead: no process of it lives", ("Start the group again.",)
    return f"has lost {named(dead)}, and needs every rank", advice


def _stopped(group: GroupFacts) -> Verdict | None:
    stopped = [rank for rank in group.ranks if rank.life == "stopped"]
    if not stopped:
        return None
    pids = " ".join(str(rank.pid) for rank in stopped)
    return f"waits for {named([rank.rank for rank in stopped])}, whose process is stopped", (
        f"Let it go on (kill -CONT {pids}), or kill it: a stopped process is never replaced.",
    )


def _stale(group: GroupFacts) -> Verdict | None:
    command = group.command
    if command is None:
        return None
    late = [rank.rank for rank in group.ranks if rank.status is None or rank.status.epoch < command.epoch]
    if not late:
        return None
    return f"waits for {named(late)} to join epoch {command.epoch}", (
        "A living rank gives back what it held before it joins; its entries below say which action it is in.",
    )


def _broken(group: GroupFacts) -> Verdict | None:
    broken = [rank for rank in group.ranks if _is_broken(rank)]
    if not broken:
        return None
    supervised = "its supervisor begins one" if group.owner_lives else "nobody lives who could begin one"
    return f"cannot step: a step broke on {named([rank.rank for rank in broken])}", (
        f"Only a new epoch leads out; {supervised}.",
        "The log of that rank names what its step raised.",
    )


def _under_way(group: GroupFacts) -> Verdict | None:
    command = group.command
    if command is None or command.operation is Operation.NONE:
        return None
    open_ranks = [rank for rank in group.ranks if not _is_done(rank, group)]
    if not open_ranks:
        return None
    asked = f"{command.operation.name} (sequence {command.sequence})"
    overdue = [rank for rank in open_ranks if _overdue_s(rank) > 0]
    if overdue:
        worst = max(overdue, key=_overdue_s)
        action = worst.action.name if worst.action is not None else "an action"
        return f"waits for rank {worst.rank}, which does not come out of {action}", (
            f"See what process {worst.pid} does (py-spy dump --pid {worst.pid}); end it if that is nothing.",
        )
    if group.controller_stopped and not command.operation.is_decision:
        return _waits_for_controller(group, asked)
    if group.controller_pid is None and not command.operation.is_decision:
        return f"is left with {asked} undecided: its controller is gone", (
            "Its supervisor, or a rank, decides it within a second. If none does, none of them goes on.",
        )
    late = _late(open_ranks, group)
    what = "settles" if command.operation.is_decision else "works on"
    return f"{what} {asked}, and waits for {named([rank.rank for rank in late])}", (
        f"If that does not end, look at {named([rank.rank for rank in late])} first.",
    )


def _uncommitted(group: GroupFacts) -> Verdict | None:
    command = group.command
    if command is None or not command.operation.is_commit or group.committed.sequence == command.sequence:
        return None
    if group.controller_stopped:
        return _waits_for_controller(group, f"{command.operation.name} (sequence {command.sequence})")
    return f"has committed sequence {command.sequence}, and nobody has written which version that is", (
        "Its supervisor, or a rank, does so within a second. If none does, none of them goes on.",
    )


def _waits_for_controller(group: GroupFacts, asked: str) -> Verdict:
    pid = group.controller_pid
    return f"waits with {asked} for process {pid}, which has the controller role and is stopped", (
        f"End it (kill -9 {pid}), and the group goes on by itself; or let it go on (kill -CONT {pid}).",
    )


def _faulted(group: GroupFacts) -> Verdict | None:
    faulted = [rank.rank for rank in group.ranks if rank.weights == "FAULTED"]
    if not faulted:
        return None
    return f"does not serve: a teardown failed on {named(faulted)}", (
        f"'wsm clear {group.name}' tries it again on all ranks.",
        "'wsm rollout' does so by itself, a few times, and then replaces the rank.",
    )


def _serving(group: GroupFacts) -> Verdict | None:
    return (f"serves version {group.committed.version}", ()) if serves(group) else None


def _half(group: GroupFacts) -> Verdict | None:
    held = {(rank.weights, rank.kv) for rank in group.ranks}
    if held == {("NORMAL", "CLEARED")}:
        return f"holds version {group.committed.version}, and no KV cache, as it was told", (
            f"'wsm update {group.name} --tags kv_cache' brings the KV cache, and then it serves.",
        )
    if held == {("CLEARED", "NORMAL")}:
        return "holds its KV cache, and no weights, as it was told", (
            f"'wsm update {group.name}' brings the weights, and then it serves.",
        )
    return None


def _cleared(group: GroupFacts) -> Verdict | None:
    if any(rank.weights != "CLEARED" for rank in group.ranks):
        return None
    return "holds no weights, as it was told", (f"'wsm update {group.name}' makes it serve.",)


def _mixed(group: GroupFacts) -> Verdict | None:
    states = ", ".join(f"rank {rank.rank} {rank.weights} and KV {rank.kv}" for rank in group.ranks)
    return f"does not serve: {states}", (f"'wsm clear {group.name}' brings the ranks together.",)


_RULES: Sequence[Callable[[GroupFacts], Verdict | None]] = (
    _unreadable,
    _damaged,
    _absent,
    _dead,
    _stopped,
    _stale,
    _broken,
    _under_way,
    _uncommitted,
    _serving,
    _faulted,
    _half,
    _cleared,
    _mixed,
)


def _is_broken(rank: RankFacts) -> bool:
    return rank.step is not None and rank.step.kind is StepKind.BROKEN


def _is_done(rank: RankFacts, group: GroupFacts) -> bool:
    code = None if group.command is None else rank.code(group.command)
    return code is not None and code.is_terminal


def _overdue_s(rank: RankFacts) -> float:
    action = rank.action
    return 0.0 if action is None or action.seconds is None else action.seconds - action.deadline_s


def _late(ranks: Sequence[RankFacts], group: GroupFacts) -> list[RankFacts]:
    """Return the least advanced of them: for these the others wait."""

    def progress(rank: RankFacts) -> tuple[int, ...]:
        code = None if group.command is None else rank.code(group.command)
        if code is None or rank.status is None:
            return (-1, 0, 0)
        action = rank.status.action if code is StatusCode.RUNNING else 0
        return (code, action, rank.status.ready)

    least = min(map(progress, ranks))
    return [rank for rank in ranks if progress(rank) == least]
