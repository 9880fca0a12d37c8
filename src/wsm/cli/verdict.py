"""What the words of a group come to, in one sentence: what it does, who is to blame, what to do next.

Pure: reads a :class:`wsm.GroupStatus`, asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wsm.controller.status import GroupStatus, RankStatus
from wsm.states.vocabulary import Tag
from wsm.states.words import Operation
from wsm.status.facts import words_for


def verdict(status: GroupStatus) -> str:
    """Return the most important thing about a group. Deaths come first, then work under way, then states."""
    return next(filter(None, (rule(status) for rule in _RULES)), "does not serve")


def _absent(status: GroupStatus) -> str | None:
    absent = [rank for rank in status.ranks if rank.life == "never"]
    if not absent:
        return None
    if len(absent) == len(status.ranks):
        return "no rank has attached yet; start the workers"
    return f"{_names(absent)} {_verb(absent, 'has', 'have')} not attached yet; the group waits for that"


def _dead(status: GroupStatus) -> str | None:
    dead = [rank for rank in status.ranks if rank.life == "dead"]
    if not dead:
        return None
    if len(dead) == len(status.ranks):
        return "every rank is dead; start the group again"
    supervised = status.owner_pid is not None and status.owner_pid not in {rank.pid for rank in status.ranks}
    again = "start the group again"
    if supervised:
        again = f"its supervisor (process {status.owner_pid}) replaces it; if that is gone, {again}"
    return f"{_names(dead)} {_verb(dead, 'is', 'are')} dead, and the group needs every rank; {again}"


def _stopped(status: GroupStatus) -> str | None:
    stopped = [rank for rank in status.ranks if rank.life == "stopped"]
    if not stopped:
        return None
    pids = ", ".join(str(rank.pid) for rank in stopped)
    return (
        f"the process of {_names(stopped)} is stopped, and the group waits for it; continue it "
        f"(kill -CONT {pids}), or kill it and start the group again"
    )


def _under_way(status: GroupStatus) -> str | None:
    if status.over:
        return None
    waiting = [rank for rank in status.ranks if not _is_done(rank, status)]
    silent = [rank for rank in waiting if not _has_answered(rank, status)]  # for them the others wait, too
    late = (
        ", ".join(f"{_names([rank])} {_doing(rank, status)}" for rank in silent or waiting)
        or "the committed version"
    )
    if status.operation == "NONE":
        return f"waits for {late} to join epoch {status.epoch}"
    if status.controller_pid is None and Operation[status.operation].is_abort:
        return f"{status.operation} is decided; waits for {late}; if that does not end, start the group again"
    if status.controller_pid is None:
        return (
            f"{status.operation} is open, its controller gone; waits for {late}; a rank or the supervisor "
            "ends it within a second"
        )
    hot = status.serving and Operation[status.operation].is_hot
    meanwhile = f"serves version {status.version}; " if hot else ""
    by = f"{meanwhile}{status.operation} by process {status.controller_pid}"
    if status.controller_stopped:
        return (
            f"{by}, which is stopped; waits for {late}; end it (kill -9 {status.controller_pid}), and the "
            "group goes on by itself"
        )
    return f"{by} is under way; waits for {late}"


def _broken(status: GroupStatus) -> str | None:
    broken = [rank for rank in status.ranks if rank.step_kind == "broken"]
    if not broken:
        return None
    return (
        f"a step raised on {_names(broken)}, which ends this epoch; see its log, then start the group again"
    )


def _serving(status: GroupStatus) -> str | None:
    return f"serves version {status.version}" if status.serving else None


def _faulted(status: GroupStatus) -> str | None:
    faulted = [rank for rank in status.ranks if rank.weights == "FAULTED"]
    if not faulted:
        return None
    return (
        f"a teardown failed on {_names(faulted)}; 'wsm clear {status.name}' tries it again on all ranks, and "
        "so does 'wsm rollout' by itself"
    )


def _half(status: GroupStatus) -> str | None:
    if not status.holds_half:
        return None
    (missing,) = status.missing
    brings = "--version V" if missing is Tag.WEIGHTS else f"--tags {missing.value}"
    return f"{words_for(status.missing, status.version)}; 'wsm update {status.name} {brings}' brings it"


def _cleared(status: GroupStatus) -> str | None:
    if status.state != "CLEARED":
        return None
    return f"holds no weights; 'wsm update {status.name} --version V' makes it serve"


def _mixed(status: GroupStatus) -> str | None:
    if status.state != "MIXED":
        return None
    return f"the ranks differ and do not serve; 'wsm clear {status.name}' brings them together"


_RULES: Sequence[Callable[[GroupStatus], str | None]] = (
    _dead,
    _absent,
    _stopped,
    _under_way,
    _broken,
    _serving,
    _faulted,
    _half,
    _cleared,
    _mixed,
)


def _is_done(rank: RankStatus, status: GroupStatus) -> bool:
    return _has_answered(rank, status) and rank.code.startswith("DONE_")


def _has_answered(rank: RankStatus, status: GroupStatus) -> bool:
    return (rank.epoch, rank.sequence) == (status.epoch, status.sequence)


def _doing(rank: RankStatus, status: GroupStatus) -> str:
    if not _has_answered(rank, status):
        return "(has not answered)"
    where = rank.doing or (f"action {rank.action}" if rank.code == "RUNNING" else "")
    since = f" for {rank.since_s:.1f} s" if rank.since_s is not None else ""
    return f"({' '.join(filter(None, (rank.code, where)))}{since})"


def _names(ranks: Sequence[RankStatus]) -> str:
    numbers = ", ".join(str(rank.rank) for rank in ranks if rank.step_kind != "none")
    others = ["the KV-cache process" for rank in ranks if rank.step_kind == "none"]
    return " and ".join([*([f"rank {numbers}"] if numbers else []), *others])


def _verb(ranks: Sequence[RankStatus], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several
