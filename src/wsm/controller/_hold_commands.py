"""What a hold means for a request: what is answered without the ranks, what is refused, what it changes.

Whose hold is in force, and what it lets through, is decided by :mod:`wsm.states.holding`.
"""

from __future__ import annotations

from dataclasses import replace

from wsm.controller import errors
from wsm.controller._command_request import CommandRequest
from wsm.controller.group_view import GroupView
from wsm.receipt import Outcome, Receipt, named
from wsm.states import holding
from wsm.states.decide import missing_anywhere
from wsm.states.holding import Answer, Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, Tag, sentence_of
from wsm.states.words import Operation


def answered_at_once(group: GroupView, request: CommandRequest, view: View) -> Receipt | None:
    """Return the receipt of a hold or a release that no rank has to be asked for; None: write it.

    Raises
    ------
    RefusedError
        If another owner holds the group, the hold is not in force, or the group could not serve.
    """
    missing, held = missing_anywhere(view), view.committed.held
    if request.operation is Operation.HOLD:
        hold = group.known_hold(view)
        answer = holding.asked_to_hold(hold, held=held, owner=request.owner)
    else:
        hold = _in_force(group, request, view)
        answer = holding.asked_to_release(
            hold, held=held, owner=request.owner, forced=request.forced, missing=missing
        )
    if answer is Answer.NOT_THE_OWNER and hold is not None:
        operation = request.operation.name.lower()
        raise errors.held_by_another(operation=operation, owner=hold.owner, hold_id=hold.hold_id)
    if answer is Answer.CANNOT_SERVE:
        raise errors.cannot_be_released(missing=named(missing), told=sentence_of(missing))
    if answer is Answer.NOTHING:
        return _receipt(group, request, view, Outcome.ALREADY_OPEN, missing)
    if answer is Answer.RENEW:
        _renew(group, view, hold, request.arguments.hold)
        return _receipt(group, request, view, Outcome.HOLD_RENEWED, missing)
    return None


def under_hold(group: GroupView, request: CommandRequest, view: View) -> CommandRequest:
    """Return a command with what the hold that the group stands under means for it.

    Raises
    ------
    RefusedError
        If it names a hold that is not in force, or is to serve and brings not all that is missing.
    """
    if request.hold is None and not view.committed.held:
        return request
    hold, asked = _in_force(group, request, view), request.arguments
    usual = InFlightPolicy.KEEP if request.operation.is_hot else InFlightPolicy.ABORT
    in_flight = holding.in_flight_under(hold, request.in_flight, usual)
    if asked.after is After.SERVE and view.committed.held:
        left = missing_anywhere(view) - asked.tags
        if left:
            raise errors.cannot_be_released(missing=named(left), told=sentence_of(left))
        if hold is not None and request.hold is None and hold.owner != request.owner:
            raise errors.held_by_another(operation="release", owner=hold.owner, hold_id=hold.hold_id)
    begins = None if view.committed.held else asked.hold  # the hold that there is stays what it is
    return replace(request, arguments=replace(asked, in_flight=in_flight, hold=begins))


def _in_force(group: GroupView, request: CommandRequest, view: View) -> Hold | None:
    """Return what is known of the hold that the group stands under; refuse a request that names another."""
    hold, held = group.known_hold(view), view.committed.held
    if not holding.is_in_force(hold, request.hold, held=held):
        now = None if not held else "without a name" if hold is None else hold.hold_id
        raise errors.hold_not_in_force(hold=request.hold or "", now=now)
    return hold


def _renew(group: GroupView, view: View, hold: Hold | None, asked: Hold | None) -> None:
    """Let the lease of a hold begin anew, as its owner asks for it now; id and policies stay."""
    record = group.committed(view)
    if asked is not None:
        kept = (
            asked
            if hold is None
            else replace(hold, lease_s=asked.lease_s, on_lease=asked.on_lease, renewed_ns=asked.renewed_ns)
        )
        group.write_record(view, replace(record, hold=kept.facts()))


def _receipt(
    group: GroupView, request: CommandRequest, view: View, how: Outcome, missing: frozenset[Tag]
) -> Receipt:
    """Return the receipt of a hold or a release that no rank was asked for."""
    version = group.known_version(view)
    return Receipt(
        request_id=request.arguments.request_id,
        outcome=how,
        epoch=view.command.epoch,
        sequence=view.command.sequence,
        version=None if Tag.WEIGHTS in missing else version,
        previous_version=version,
        manifest_digest=None,
        loaded=False,
        seconds=0.0,
        pause_s=0.0,
        ranks=(),
        missing=named(missing),
        serving=not missing and not view.committed.held,
        hold=group.hold(view),
    )
