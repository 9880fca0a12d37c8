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
        then = Advice(
            f"Wait until it is known; '{abort}' gives it up, and it may have been decided to commit it.",
            (abort,),
        )
        return Finding(
            "decided-outside", f"{state}, and waits for a decision that is made outside", advice=(then,)
        )
    lease_s = 0.0 if arguments is None else arguments.lease_s or 0.0
    ends = f"It is aborted {lease_s:g} s after all ranks had prepared it."
    if group.controller_pid is not None:
        pid = f"process {group.controller_pid}"
        then = Advice(f"Wait until {pid} commits or aborts it, or end that process, which aborts it. {ends}")
        return Finding("decision-held", f"{state}, and waits for the decision of {pid}", advice=(then,))
    if arguments is None or not arguments.leased:
        return None
    commit = f"wsm commit {group.name} --request-id {arguments.request_id}"
    then = Advice(f"'{commit}' serves it, '{abort}' takes it back. {ends}", (commit, abort))
    return Finding("decision-held", f"{state}, and waits for its caller's decision", advice=(then,))
