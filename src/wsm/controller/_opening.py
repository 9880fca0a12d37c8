"""What a group can be asked now: whether a command may be written, under which hold, and what needs no rank.

What the group holds is judged by :mod:`wsm.states.decide`; which hold is in force, and what it lets
through, by :mod:`wsm.states.holding`. Writes nothing but the lease of a hold that is renewed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from wsm.command import CommandArguments
from wsm.controller import outcome
from wsm.controller._command_request import CommandRequest
from wsm.controller.errors import hold_closed
from wsm.controller.group_view import GroupView, loads
from wsm.errors import RefusedError
from wsm.receipt import Outcome, Receipt, named
from wsm.signals.owner_settings import loop_without_poll
from wsm.states import decide, holding
from wsm.states.decide import missing_anywhere
from wsm.states.errors import CommandOpenError
from wsm.states.holding import Answer, Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, InFlightPolicy, Tag, sentence_of
from wsm.states.words import Operation
from wsm.status.facts import STOPPED, kill


def require_able(group: GroupView, view: View, operation: Operation) -> None:
    """Refuse a command that the group cannot be given now.

    Raises
    ------
    RankLostError
        If a process is gone; it names the ranks.
    wsm.states.errors.CommandOpenError
        If the last command is not over.
    RefusedError
        If the ranks look at commands of one process only, and this is another one (``loop-does-not-poll``).
        Or if a rank said on joining that it derived other plans than the first one (``plans-differ``): they
        would wait for each other in different collective actions.
    """
    asked = operation.name.lower()
    lost = group.lost()
    if lost:
        status = group.status()
        raise outcome.ranks_lost(asked, lost, status.sentence(), " ".join(status.advice))
    try:
        decide.next_command(view, operation)
    except CommandOpenError as error:
        ranks, told = group.facts().ranks, error.context
        waiting = dict(told["waiting"])
        for rank, what in waiting.items():
            if ranks[rank].life == STOPPED and (fix := kill("-CONT", ranks[rank].pid)):
                waiting[rank] = f"{what}; its process is stopped: '{fix[0]}'"
        raise CommandOpenError(**{**told, "waiting": waiting}) from None
    loop = loop_without_poll(group.segment)
    if loop is not None:
        raise RefusedError(
            f"{asked} was not written: the ranks look at the words of their engine only, and would never see "
            f"it; put manager.poll(model_runner) at the top of the engine's loop ({loop}), or command "
            "through the engine",
            code="loop-does-not-poll",
            operation=asked,
            place=loop,
        )
    others = group.ranks_of_other_plans(view.command.epoch)
    if others:
        raise RefusedError(
            f"rank {', '.join(map(str, others))} derived other plans than rank 0; "
            "give every rank a runner with the same surfaces and the same options",
            code="plans-differ",
            ranks=tuple(others),
        )


def restore_of(group: GroupView, view: View, request_id: str, deadline_s: float) -> CommandArguments:
    """Return the arguments of the update that loads what the group is owed, as it was loaded.

    Raises as :func:`require_able`, and if it is not known which version that is.
    """
    record = group.committed(view)
    require_able(group, view, Operation.UPDATE)
    # The processes of a new epoch have no requests that a hold could have set aside.
    hold = None if view.command.operation is Operation.NONE else group.known_hold(view)
    in_flight = holding.in_flight_under(hold, None, InFlightPolicy.ABORT)
    asked = CommandArguments(request_id, record.version, in_flight, restores=True, deadline_s=deadline_s)
    return asked.loading_as(record.load)


# -- holds -----------------------------------------------------------------------------------------


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
        raise _held_by_another(request.operation.name.lower(), hold)
    if answer is Answer.CLOSED and hold is not None and hold.closed is not None:
        raise hold_closed(closed=hold.closed)
    if answer is Answer.CANNOT_SERVE:
        raise _cannot_serve(missing)
    if answer is Answer.COMMAND:
        return None
    how = Outcome.ALREADY_OPEN
    if answer is Answer.RENEW:
        asked, how = request.arguments.hold, Outcome.HOLD_RENEWED
        if asked is not None and hold is not None:  # its lease begins anew; id and policies stay
            terms = {"lease_s": asked.lease_s, "on_lease": asked.on_lease, "renewed_ns": asked.renewed_ns}
            asked = structs.replace(hold, **terms)
        if asked is not None:
            group.revise_hold(view, asked)
    version = group.known_record(view).version
    held_version = None if Tag.WEIGHTS in missing else version
    return outcome.receipt(group, view, request.arguments, how, version=held_version, previous=version)


def under_hold(group: GroupView, request: CommandRequest, view: View) -> CommandRequest:
    """Return a command with what the hold that the group stands under means for it.

    Raises
    ------
    RefusedError
        If it names a hold that is not in force; or is to serve, and brings not all that is missing, or not
        what opens a hold that is closed.
    """
    if request.hold is None and not view.committed.held:
        return request
    hold, asked = _in_force(group, request, view), request.arguments
    usual = InFlightPolicy.KEEP if request.operation.is_hot else InFlightPolicy.ABORT
    in_flight = holding.in_flight_under(hold, request.in_flight, usual)
    if asked.after is After.SERVE and view.committed.held:
        left = missing_anywhere(view) - asked.tags
        if left:
            raise _cannot_serve(left)
        if hold is not None and request.hold is None and hold.owner != request.owner:
            raise _held_by_another("release", hold)
        require_opened(hold, asked, asked.version)
    begins = None if view.committed.held else asked.hold  # the hold that there is stays what it is
    return replace(request, arguments=structs.replace(asked, in_flight=in_flight, hold=begins))


def require_opened(hold: Hold | None, asked: CommandArguments, version: str | None) -> None:
    """Refuse a command that would serve and leaves the hold closed (code ``hold-closed``)."""
    closed = holding.keeps_closed(hold, version, loads=loads(asked), restores=asked.restores)
    if closed is not None:
        raise hold_closed(closed=closed)


def _in_force(group: GroupView, request: CommandRequest, view: View) -> Hold | None:
    """Return what is known of the hold that the group stands under; refuse a request that names another."""
    hold, held = group.known_hold(view), view.committed.held
    if not holding.is_in_force(hold, request.hold, held=held):
        now = None if not held else "without a name" if hold is None else hold.hold_id
        found = "the group is open" if now is None else f"the group stands under hold {now}"
        raise RefusedError(
            f"hold {request.hold} is no longer in force: {found}; nothing was changed: "
            "hold the group anew before you command it",
            code="hold-not-in-force",
            hold=request.hold,
            now=now,
        )
    return hold


def _held_by_another(operation: str, hold: Hold) -> RefusedError:
    fix = "release it as its owner, or force it" if operation == "release" else "wait for its release"
    return RefusedError(
        f"the group is held by {hold.owner!r} (hold {hold.hold_id}), and another owner asks for the "
        f"{operation}; nothing was changed: {fix}",
        code="held-by-another",
        operation=operation,
        owner=hold.owner,
        hold=hold.hold_id,
    )


def _cannot_serve(missing: Iterable[Tag]) -> RefusedError:
    told = sentence_of(missing)
    return RefusedError(
        f"the group does not serve without {told}, and stays held; "
        "bring that with an update, then release it",
        code="cannot-serve",
        missing=named(missing),
    )
