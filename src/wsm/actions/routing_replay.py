"""Routing replay (R3): records of expert choices per request, which must not outlive their requests.

It must not know what a record holds; FastDeploy#6569 is what stale ones did.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.surfaces import RoutingReplaySurface, require
from wsm.states.vocabulary import InFlightPolicy


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
