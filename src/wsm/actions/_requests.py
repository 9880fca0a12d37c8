"""What becomes of the requests around a weight change: stop, settle by policy, forget inputs, go on.

Admission ends before the rank parks, since a drained scheduler has to step. A request is ended or frozen only
after the command was accepted, so that a refused command has cost no answer. Records of expert choices
(routing replay, R3) must not outlive their requests (FastDeploy#6569).
"""

from __future__ import annotations

from wsm.actions.base import Action, ActionContext, SteppedAction
from wsm.actions.errors import PreconditionError
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

    purpose = "admit no new request, drain if asked to"

    def run(self, context: ActionContext) -> None:
        context.runner.requests.stop_admitting()

    def settled(self, context: ActionContext) -> bool:
        return context.in_flight is not InFlightPolicy.DRAIN or context.runner.requests.in_flight() == 0

    def undo(self, context: ActionContext) -> None:
        if context.from_normal and not (context.held or context.done.weights_touched):
            context.runner.requests.resume_admitting()


class SettleRequests(Action):
    """Empty every slot, as the in-flight policy says: end the requests, or freeze them for later.

    Frozen requests lose their slot. Under the KV policy DROP they lose their blocks too and are prefilled
    anew; under another a scheduler that can holds them with their blocks. Ended ones are answered with what
    they have so far (FastDeploy#7753).

    Parameters
    ----------
    break_off_drain : bool
        Whether requests that DRAIN still waits for are ended. Only where the weights go anyway, because
        another rank has lost its own.
    may_hold : bool
        Whether requests may be held with their blocks: only where weights come at once.
    """

    purpose = "end or freeze what still runs"

    def __init__(self, *, break_off_drain: bool = False, may_hold: bool = True) -> None:
        self._break_off_drain = break_off_drain
        self._may_hold = may_hold

    def precondition(self, context: ActionContext) -> None:
        left = context.runner.requests.in_flight()
        if context.in_flight is InFlightPolicy.DRAIN and left and not self._break_off_drain:
            raise PreconditionError(
                action=self.name,
                found=f"{left} request(s) still run although the policy is drain",
                fix="keep stepping until StopAdmitting.settled() before parking",
            )

    def run(self, context: ActionContext) -> None:
        requests = context.runner.requests
        requests.stop_admitting()
        if context.in_flight is InFlightPolicy.KEEP:
            holds = self._may_hold and context.kv_policy is not KVPolicy.DROP
            if holds and isinstance(requests, HoldingRequestSurface):
                context.facts["requests_held"] = requests.hold()
            else:  # plans derived from a scheduler that cannot freeze refuse the policy
                freezing = requests if isinstance(requests, FreezingRequestSurface) else None
                known = require(freezing, name="requests.freeze()", action=self.name)
                context.facts["requests_frozen"] = known.freeze()
        elif context.in_flight is InFlightPolicy.ABORT or self._break_off_drain:
            context.facts["requests_aborted"] = requests.abort_all() + _end_set_aside(context)

    def probe(self, context: ActionContext) -> None:
        left = context.runner.requests.in_flight()
        self._expect(not left, "no request in flight", left)


class EndSetAside(Action):
    """Under a hold, end the requests that it has set aside, where nothing runs that has to be settled."""

    purpose = "end what a hold has set aside"

    def run(self, context: ActionContext) -> None:
        context.facts["requests_aborted"] = _end_set_aside(context)


def _end_set_aside(context: ActionContext) -> int:
    requests = context.runner.requests
    return requests.abort_set_aside() if context.held and isinstance(requests, KnownSetAside) else 0


class LoseRequests(Action):
    """Tell the clients of running requests that a rank was lost, and to ask again."""

    purpose = "answer what runs with an error that can be retried"

    def run(self, context: ActionContext) -> None:
        requests = context.runner.requests
        requests.stop_admitting()
        if isinstance(requests, LosableRequests):
            context.facts["requests_lost"] = requests.lose_all()


class ResumeAdmitting(Action):
    """Admit requests again. Runs after COMMIT only, never because something failed."""

    purpose = "admit requests again"

    def run(self, context: ActionContext) -> None:
        context.runner.requests.resume_admitting()

    def probe(self, context: ActionContext) -> None:
        requests = context.runner.requests
        self._expect(not isinstance(requests, KnownAdmission) or requests.is_admitting(), "admission", "none")


class ResetInputs(Action):
    """Forget the input tensors cached from the last batch before the change (FastDeploy#7744)."""

    purpose = "forget cached input tensors"

    def run(self, context: ActionContext) -> None:
        context.runner.requests.reset_inputs()


def _replay(context: ActionContext, action: str) -> RoutingReplaySurface:
    return require(context.runner.routing_replay, name="routing_replay", action=action)


class ForgetRoutingReplay(Action):
    """Forget the records of all requests, except under KEEP, whose requests go on and still own theirs."""

    purpose = "forget routing records of ended requests"

    def run(self, context: ActionContext) -> None:
        replay = _replay(context, self.name)
        if context.in_flight is not InFlightPolicy.KEEP:
            replay.clear_all_requests()


class ResumeRoutingReplay(Action):
    """Go on recording, once the model is whole again (FastDeploy#6604)."""

    purpose = "go on recording expert choices"

    def run(self, context: ActionContext) -> None:
        _replay(context, self.name).resume()
