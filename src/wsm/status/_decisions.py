"""Whose decision a prepared command waits for, where its controller does not make it. Pure."""

from __future__ import annotations

from wsm.states.words import Decider, StatusCode
from wsm.status._advice import Advice, Finding
from wsm.status.facts import GroupFacts


def decision_held(group: GroupFacts, state: str) -> Finding | None:
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
            _staged(group),
            advice=(then,),
        )
    lease_s = 0.0 if arguments is None else arguments.lease_s or 0.0
    ends = f"It is aborted {lease_s:g} s after all ranks had prepared it."
    because = "; ".join(part for part in (_staged(group), _left(group)) if part)
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


def _staged(group: GroupFacts) -> str:
    """Say how much the ranks keep prepared until the decision; empty: nothing is known of it."""
    amounts = sorted(rank.staged_bytes / 2**20 for rank in group.ranks if not rank.helper)
    if not any(amounts):
        return ""
    least, most = f"{amounts[0]:.1f}", f"{amounts[-1]:.1f}"
    return f"{least if least == most else f'{least} to {most}'} MiB are staged on each rank"


def _left(group: GroupFacts) -> str:
    left_s = group.decision_left_s
    if left_s is None:
        return ""
    return f"its lease lasts {left_s:.0f} s more" if left_s > 0 else f"its lease ran out {-left_s:.0f} s ago"
