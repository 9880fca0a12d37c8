"""What is asked before a command is written: whether it is legal for this group, and whether it is needed.

Reads only. Whatever is refused here has changed nothing.
"""

from __future__ import annotations

from wsm.controller.errors import MixedGroupError, PlansDifferError, RankLostError
from wsm.controller.group_view import GroupView
from wsm.controller.order import Order
from wsm.controller.outcome import restorable
from wsm.controller.status import read_status
from wsm.receipt import Outcome, Receipt, named
from wsm.states.view import View
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState
from wsm.states.words import Operation, StatusCode
from wsm.status.facts import Held, held_by_all


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


def require_one_state(view: View, operation: Operation, tags: frozenset[Tag] = ALL_TAGS) -> Held:
    """Return what all participants hold; a command to ranks that differ has no one meaning.

    Ranks that differ can only be cleared, of both halves; FAULTED counts most then, and NORMAL more than
    CLEARED.

    Raises
    ------
    MixedGroupError
        If anything but a whole clear finds ranks that differ, or a faulted one.
    """
    found = [Held(WeightState(status.weights), KVState(status.kv)) for status in view.statuses]
    weights = {each.weights for each in found}
    one = held_by_all(found)
    whole_clear = operation is Operation.CLEAR and tags == ALL_TAGS
    if not whole_clear and (one is None or WeightState.FAULTED in weights):
        raise MixedGroupError(states={rank: str(each) for rank, each in enumerate(found)})
    return Held(
        WeightState.FAULTED if WeightState.FAULTED in weights else max(weights),
        KVState.CLEARED if all(each.kv is KVState.CLEARED for each in found) else KVState.NORMAL,
    )


def state_before(group: GroupView, view: View, held: Held) -> WeightState:
    """Return what the group is to be again if it is lost in the command that is admitted now.

    That is NORMAL if it serves, or, in an epoch that was not restored yet, if it served before.
    """
    waits = held.weights is WeightState.CLEARED and group.unrestored(view) is not None
    return WeightState.NORMAL if waits else held.as_whole


def nothing_to_do(group: GroupView, view: View, order: Order, held: Held) -> Receipt | None:
    """Return the receipt of a command whose end is reached already.

    Parameters
    ----------
    group, view : GroupView, View
        The group, and what was read of it.
    order : Order
        What is asked.
    held : Held
        What all ranks hold.
    """
    outcome = _outcome_without_work(group, view, order, held)
    return None if outcome is None else _receipt(outcome, group, view, order, held)


def as_it_stands(group: GroupView, view: View, order: Order, held: Held) -> Receipt | None:
    """Return the receipt of an update that names no version, if rank 0 finds that what is held is announced.

    Only the ranks can look. None where something that is asked for is missing, or is to be loaded anyway.

    Parameters
    ----------
    group, view, order, held
        As for :func:`nothing_to_do`, read before the command is written.
    """
    unnamed = order.operation is not Operation.CLEAR and order.arguments.version is None
    if not unnamed or order.force or order.arguments.tags & held.missing:
        return None
    outcome = Outcome.ALREADY_SERVED if held.serving else Outcome.ALREADY_HELD
    return _receipt(outcome, group, view, order, held)


def _receipt(outcome: Outcome, group: GroupView, view: View, order: Order, held: Held) -> Receipt:
    there = outcome is not Outcome.ALREADY_CLEARED
    origin = view.command._replace(sequence=view.committed.sequence)
    found = [group.report(rank, origin, StatusCode.DONE_COMMITTED) for rank in range(group.participants)]
    reports = tuple(report for report in found if report is not None) if there else ()
    digests = {report.manifest_digest for report in reports if report.manifest_digest is not None}
    return Receipt(
        request_id=order.arguments.request_id,
        outcome=outcome,
        epoch=view.command.epoch,
        sequence=view.committed.sequence if there else view.command.sequence,
        version=view.committed.version if held.weights is WeightState.NORMAL else None,
        previous_version=view.committed.version,
        manifest_digest=digests.pop() if len(digests) == 1 else None,
        loaded=False,
        seconds=0.0,
        pause_s=0.0,
        ranks=reports,
        tags=named(order.arguments.tags),
        missing=named(held.missing),
        restorable=restorable(reports),
    )


def _outcome_without_work(group: GroupView, view: View, order: Order, held: Held) -> Outcome | None:
    tags = order.arguments.tags
    if order.operation is Operation.CLEAR:
        # A clear of a group that waits to be restored is a command like any other: it is the last one now.
        at_rest = held.weights is not WeightState.FAULTED and group.unrestored(view) is None
        return Outcome.ALREADY_CLEARED if at_rest and tags <= held.missing else None
    if tags & held.missing:
        return None
    if Tag.WEIGHTS in tags and (order.served is None or order.served != view.committed.version):
        return None
    return Outcome.ALREADY_SERVED if held.serving else Outcome.ALREADY_HELD
