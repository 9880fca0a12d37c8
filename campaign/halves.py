"""What must hold of a group that holds weights or a KV cache alone: every command is idempotent.

Whatever the fault left, the same command asked for again does what it says, and once more does nothing; and
weights that were left alone are those of the version that the group names.
"""

from __future__ import annotations

from campaign.group import GroupUnderFault
from campaign.operations import holds_half, operation_of
from campaign.result import Result
from wsm.receipt import Outcome

_NOTHING_DONE = (Outcome.ALREADY_CLEARED, Outcome.ALREADY_HELD, Outcome.ALREADY_SERVED)


def repeat(name: str, group: GroupUnderFault, result: Result) -> None:
    """Ask twice more for what the operation has asked for, and let weights that are alone serve."""
    if "tags" in (operation_of(name).options or {}):
        _ask_twice(name, group, result)
    status = group.status()
    if result.problems or not holds_half(status) or status.state != "NORMAL":
        return
    held = status.version
    answer = group.command("wake-kv")
    if answer.receipt is None or not group.status().serving or held is None:
        result.problems.append(f"weights of version {held} alone did not serve again: {answer.said}")
        return
    checked, problems = group.await_service(int(held))
    result.checked += checked
    result.problems += problems


def _ask_twice(name: str, group: GroupUnderFault, result: Result) -> None:
    if group.status().state == "FAULTED" and operation_of(name).command != "clear":
        group.command("clear")
    version = group.published if operation_of(name).brings_weights else None
    again = group.command(name, version)
    if again.receipt is None:
        result.problems.append(f"{name}, asked for again, failed: {again.said}")
        return
    held = _held(group)
    once_more = group.command(name, version)
    outcome = once_more.receipt.outcome if once_more.receipt is not None else None
    result.require(outcome in _NOTHING_DONE, f"{name} is not idempotent: {once_more.said}")
    result.require(held == _held(group), f"{name}, repeated, changed {held} to {_held(group)}")


def _held(group: GroupUnderFault) -> list[tuple[str, str]]:
    return [(rank.weights, rank.kv) for rank in group.status().ranks]
