"""What is asked before a command is written: whether it is legal for this group, and whether it is needed.

Reads only. Whatever is refused here has changed nothing.
"""

from __future__ import annotations

from wsm.controller.errors import MixedGroupError, PlansDifferError, RankLostError
from wsm.controller.group_view import GroupView
from wsm.controller.status import read_status
from wsm.protocol import epochs
from wsm.protocol.view import View
from wsm.receipt import Outcome, Receipt
from wsm.signals.word import Operation, StatusCode
from wsm.states.vocabulary import WeightState


def require_alive(group: GroupView, operation: Operation) -> None:
    """Refuse to command a group that has lost a rank.

    Raises
    ------
    RankLostError
        If a process is gone; it names the ranks.
    """
    lost = group.lost()
    if lost:
        raise RankLostError(operation=operation.name.lower(), ranks=lost, group=read_status(group).sentence())


def require_equal_plans(group: GroupView, epoch: int) -> None:
    """Refuse to command ranks that would wait for each other in different collective actions.

    Raises
    ------
    PlansDifferError
        If a rank said on attaching that it derived other plans than the first one.
    """
    found = {rank: group.plans(rank, epoch) for rank in range(group.segment.world_size)}
    if len({id(plan) for plan in found.values()}) == 1:
        return
    plans = {rank: plan.collectives() for rank, plan in found.items() if plan is not None}
    others = [rank for rank, plan in plans.items() if plan != plans.get(0, plan)]
    if others:
        raise PlansDifferError(ranks=others)


def require_one_state(view: View, operation: Operation) -> WeightState:
    """Return the state that all ranks are in; updating ranks in different states has no one meaning.

    Ranks in different states can only be cleared; FAULTED counts most then, and NORMAL more than CLEARED.

    Raises
    ------
    MixedGroupError
        If an update finds ranks in different states, or a faulted one.
    """
    states = {rank: WeightState(status.weights) for rank, status in enumerate(view.statuses)}
    found = set(states.values())
    if operation is not Operation.CLEAR and (len(found) > 1 or WeightState.FAULTED in found):
        raise MixedGroupError(states={rank: state.name for rank, state in states.items()})
    return WeightState.FAULTED if WeightState.FAULTED in found else max(found)


def state_before(view: View, state: WeightState) -> WeightState:
    """Return what the group is to be again if it is lost in the command that is admitted now.

    That is the state of its ranks, or, in an epoch that was not restored yet, what it served before.
    """
    waits = state is WeightState.CLEARED and epochs.unrestored(view) is not None
    return WeightState.NORMAL if waits else state


def nothing_to_do(
    group: GroupView,
    view: View,
    operation: Operation,
    *,
    request_id: str,
    served: int | None,
    state: WeightState,
) -> Receipt | None:
    """Return the receipt of a command whose end is reached already.

    Parameters
    ----------
    group, view : GroupView, View
        The group, and what was read of it.
    operation : Operation
        What is asked.
    request_id : str
        The caller's name for the request.
    served : int or None
        The version that an update need not load if the group serves it already.
    state : WeightState
        Of all ranks.
    """
    # A clear of a group that waits to be restored is a command like any other: it is the last one now.
    restored = epochs.unrestored(view) is None
    cleared = operation is Operation.CLEAR and state is WeightState.CLEARED and restored
    serves = state is WeightState.NORMAL and served is not None and served == view.committed.version
    if not cleared and not serves:
        return None
    origin = view.command._replace(sequence=view.committed.sequence)
    found = [group.report(rank, origin, StatusCode.DONE_COMMITTED) for rank in range(group.participants)]
    reports = tuple(report for report in found if report is not None) if serves else ()
    digests = {report.manifest_digest for report in reports}
    return Receipt(
        request_id=request_id,
        outcome=Outcome.ALREADY_SERVED if serves else Outcome.ALREADY_CLEARED,
        epoch=view.command.epoch,
        sequence=view.committed.sequence if serves else view.command.sequence,
        version=view.committed.version if serves else None,
        previous_version=view.committed.version,
        manifest_digest=digests.pop() if len(digests) == 1 else None,
        loaded=False,
        seconds=0.0,
        pause_s=0.0,
        ranks=reports,
    )
