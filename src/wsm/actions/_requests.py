"""What becomes of the requests around a weight change: stop, settle by policy, forget inputs, go on.

Responsible for the three in-flight policies, and for the records of expert choices (routing replay, R3)
that must not outlive their requests (FastDeploy#6569). It must not know why requests are stopped, nor touch
weights or caches. Admission ends before the rank parks, since a drained scheduler has to step; a request is
ended or frozen only after the command was accepted, so that a refused command has cost no answer.
"""

from __future__ import annotations

from wsm.actions import errors, names
from wsm.actions.base import Action, ActionContext, SteppedAction
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.surfaces import (
    FreezingRequestSurface,
    HoldingRequestSurface,
    KnownAdmission,
    KnownSetAside,
    LosableRequests,
    RoutingReplaySurface,
    require,
)
from wsm.states.vocabulary import InFlightPolicy, KVPolicy


class StopAdmitting(SteppedAction):
    """Admit no new request; under DRAIN, let the loop step until the running ones are finished."""

    name = names.STOP_ADMITTING
    purpose = "admit no new request, drain if asked to"

    def run(self, context: ActionContext) -> None:
        """Stop admission. Local, does not block."""
        context.runner.requests.stop_admitting()

    def settled(self, context: ActionContext) -> bool:
        """Whether nothing is left to step for: always, except under DRAIN with live requests."""
        return context.in_flight is not InFlightPolicy.DRAIN or context.runner.requests.in_flight() == 0

    def undo(self, context: ActionContext) -> None:
        """Admit again, if this rank was serving and still holds everything it served with."""
        if context.from_normal and not (context.held or context.weights_touched):
            context.runner.requests.resume_admitting()


class SettleRequests(Action):
    """Empty every slot, as the in-flight policy says: end the requests, or freeze them for later.

    Frozen requests lose their slot. Under the KV policy DROP they lose their blocks too and are prefilled
    anew; otherwise they are held with their blocks, by schedulers that can, and go on from there. Ended
    ones are answered with what they have so far (FastDeploy#7753).

    Parameters
    ----------
    break_off_drain : bool
        Whether requests that DRAIN still waits for are ended. Only where the weights go anyway, because
        another rank has lost its own.
    may_hold : bool
        Whether requests may be held with their blocks: only where weights come at once.
    """

    name = names.SETTLE_REQUESTS
    purpose = "end or freeze what still runs"

    def __init__(self, *, break_off_drain: bool = False, may_hold: bool = True) -> None:
        self._break_off_drain = break_off_drain
        self._may_hold = may_hold

    def precondition(self, context: ActionContext) -> None:
        """Refuse to break off requests that the command promised to drain.

        Raises
        ------
        PreconditionError
            If the policy is DRAIN and a live request still holds a slot.
        """
        left = context.runner.requests.in_flight()
        if context.in_flight is InFlightPolicy.DRAIN and left and not self._break_off_drain:
            raise PreconditionError(
                action=self.name,
                found=f"{left} request(s) still run although the policy is drain",
                fix="keep stepping until StopAdmitting.settled() before parking",
            )

    def run(self, context: ActionContext) -> None:
        """End, freeze or hold every running request.

        Local; reports ``requests_aborted``, ``requests_frozen`` or ``requests_held``.
        """
        requests = context.runner.requests
        requests.stop_admitting()
        if context.in_flight is InFlightPolicy.KEEP:
            holds = self._may_hold and context.kv_policy is not KVPolicy.DROP
            if holds and isinstance(requests, HoldingRequestSurface):
                context.facts["requests_held"] = requests.hold()
            elif isinstance(requests, FreezingRequestSurface):
                context.facts["requests_frozen"] = requests.freeze()
            else:  # plans derived from this scheduler refuse the policy before anything is touched
                raise errors.surface_missing(action=self.name, surface="requests.freeze()")
        elif context.in_flight is InFlightPolicy.ABORT or self._break_off_drain:
            context.facts["requests_aborted"] = requests.abort_all() + _end_set_aside(context)

    def probe(self, context: ActionContext) -> None:
        """Count the slots that are still held.

        Raises
        ------
        PostconditionError
            If a live request remains.
        """
        left = context.runner.requests.in_flight()
        if left:
            raise PostconditionError(action=self.name, expected="no request in flight", found=f"{left}")


class EndSetAside(Action):
    """Under a hold, end the requests that it has set aside: what a command that says ABORT is about.

    In plans under which nothing runs that would have to be settled first.
    """

    name = names.END_SET_ASIDE
    purpose = "end what a hold has set aside"

    def run(self, context: ActionContext) -> None:
        """End them. Local; reports ``requests_aborted``."""
        context.facts["requests_aborted"] = _end_set_aside(context)


def _end_set_aside(context: ActionContext) -> int:
    """End what a hold has set aside; a command is refused where that is needed and cannot be had."""
    requests = context.runner.requests
    return requests.abort_set_aside() if context.held and isinstance(requests, KnownSetAside) else 0


class LoseRequests(Action):
    """Tell the clients of running requests that a rank was lost, and to ask again."""

    name = names.LOSE_REQUESTS
    purpose = "answer what runs with an error that can be retried"

    def run(self, context: ActionContext) -> None:
        """Answer. Local; reports ``requests_lost``. A scheduler that cannot is left to the discard plan."""
        requests = context.runner.requests
        requests.stop_admitting()
        if isinstance(requests, LosableRequests):
            context.facts["requests_lost"] = requests.lose_all()


class ResumeAdmitting(Action):
    """Admit requests again. Runs after COMMIT only, never because something failed."""

    name = names.RESUME_ADMITTING
    purpose = "admit requests again"

    def run(self, context: ActionContext) -> None:
        """Resume admission. Local, does not block."""
        context.runner.requests.resume_admitting()

    def probe(self, context: ActionContext) -> None:
        """Ask the scheduler, if it can tell.

        Raises
        ------
        PostconditionError
            If it admits nothing: the group would say that it serves, and answer no request.
        """
        requests = context.runner.requests
        if isinstance(requests, KnownAdmission) and not requests.is_admitting():
            raise PostconditionError(action=self.name, expected="admission", found="none")


class ResetInputs(Action):
    """Forget the input tensors cached from the last batch before the change (FastDeploy#7744)."""

    name = names.RESET_INPUTS
    purpose = "forget cached input tensors"

    def run(self, context: ActionContext) -> None:
        """Reset the inputs of the main model. Local."""
        context.runner.requests.reset_inputs()


def _replay(context: ActionContext, action: str) -> RoutingReplaySurface:
    return require(context.runner.routing_replay, name="routing_replay", action=action)


class ForgetRoutingReplay(Action):
    """Forget the records of all requests, except under KEEP, whose requests go on and still own theirs."""

    name = names.FORGET_ROUTING_REPLAY
    purpose = "forget routing records of ended requests"

    def run(self, context: ActionContext) -> None:
        """Forget. Local."""
        replay = _replay(context, self.name)
        if context.in_flight is not InFlightPolicy.KEEP:
            replay.clear_all_requests()


class ResumeRoutingReplay(Action):
    """Go on recording, once the model is whole again (FastDeploy#6604)."""

    name = names.RESUME_ROUTING_REPLAY
    purpose = "go on recording expert choices"

    def run(self, context: ActionContext) -> None:
        """Resume. Local."""
        _replay(context, self.name).resume()
