"""Communicators, and DeepEP's exchange buffer on the expert-parallel one: shut down, restarted, given up."""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PreconditionError
from wsm.actions.surfaces import (
    AbandonableBuffer,
    AbandonableGroups,
    DeepEPSurface,
    GroupKind,
    ProcessGroupSurface,
    require,
)

#: What is built on a group goes before it does.
SHUT_DOWN_ORDER = (GroupKind.EP, GroupKind.TP, GroupKind.WORLD)
RESTART_ORDER = tuple(reversed(SHUT_DOWN_ORDER))


def _groups(context: ActionContext, action: str) -> ProcessGroupSurface:
    return require(context.runner.groups, name="groups", action=action)


class ShutDownGroup(Action):
    """Tear one communicator down, after all its members have met on it. Collective, blocks for the slowest.

    A group that is down already is left alone: a second clear never meets on a dead one (FastDeploy#5710).
    Whether it is down is the same on all members, since only collective actions change it; a member for which
    that fails ends the epoch.
    """

    collective = True
    touches_weights = True

    def __init__(self, kind: GroupKind) -> None:
        self.kind = kind
        self.name = f"shut_down_{kind.value}_group"
        self.purpose = f"shut the {kind.value} group down"

    def run(self, context: ActionContext) -> None:
        groups = _groups(context, self.name)
        if not groups.alive(self.kind):
            return
        context.done.weights_touched = True
        groups.barrier(self.kind)
        groups.shut_down(self.kind)

    def probe(self, context: ActionContext) -> None:
        alive = _groups(context, self.name).alive(self.kind)
        self._expect(not alive, f"the {self.kind.value} group down", "a group that is alive")


class RestartGroup(Action):
    """Create one communicator anew if it is down, and prove it by a barrier. Collective, blocks.

    It has no undo: shutting down is collective. Until an epoch has booted, one that is up is given up and
    created again: an update that failed in its middle may have left it up on some members only.
    """

    collective = True

    def __init__(self, kind: GroupKind) -> None:
        self.kind = kind
        self.name = f"restart_{kind.value}_group"
        self.purpose = f"create the {kind.value} group anew"

    def run(self, context: ActionContext) -> None:
        groups = _groups(context, self.name)
        if context.boots and isinstance(groups, AbandonableGroups):
            groups.abandon(self.kind)
        if not groups.alive(self.kind):
            # The same on all ranks, and never used twice in a run.
            incarnation = f"{self.kind.value}-epoch{context.epoch}-seq{context.sequence}"
            groups.restart(self.kind, incarnation=incarnation)
        groups.barrier(self.kind)

    def probe(self, context: ActionContext) -> None:
        alive = _groups(context, self.name).alive(self.kind)
        self._expect(alive, f"the {self.kind.value} group alive", "a group that is down")


class AbandonGroups(Action):
    """Let go of every communicator alone: a peer is dead, so they are broken and no rank can meet on them."""

    purpose = "let go of the communicators that broke with a peer"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        groups = _groups(context, self.name)
        context.done.weights_touched = True
        for kind in SHUT_DOWN_ORDER:
            if kind not in groups.kinds() or not groups.alive(kind):
                continue
            if not isinstance(groups, AbandonableGroups):
                raise PreconditionError(
                    action=self.name,
                    found=f"the {kind.value} group can only be shut down by all its members together",
                    fix="end this process and start the rank anew",
                )
            groups.abandon(kind)

    def probe(self, context: ActionContext) -> None:
        groups = _groups(context, self.name)
        up = [kind.value for kind in groups.kinds() if groups.alive(kind)]
        self._expect(not up, "every group down", f"{up} alive")


def _buffer(context: ActionContext, action: str) -> DeepEPSurface:
    return require(context.runner.deepep, name="deepep", action=action)


def _need_ep_group(context: ActionContext, action: str) -> None:
    groups = context.runner.groups
    if groups is not None and GroupKind.EP in groups.kinds() and not groups.alive(GroupKind.EP):
        raise PreconditionError(
            action=action,
            found="the EP group that the buffer lives on is down",
            fix="the group must be restarted first; if it is gone for good, replace the ranks",
        )


class ClearDeepEPBuffer(Action):
    """Destroy the buffer. Collective over the EP group, blocks for its slowest member.

    Counts as touching: only all ranks together can recreate it, so a rank that has begun this cannot
    go back to serving on its own, and the group's outcome of an abort is CLEARED.
    """

    name = names.CLEAR_DEEPEP_BUFFER
    purpose = "destroy the DeepEP buffer"
    collective = True
    touches_weights = True

    def precondition(self, context: ActionContext) -> None:
        if _buffer(context, self.name).allocated():
            _need_ep_group(context, self.name)

    def run(self, context: ActionContext) -> None:
        deepep = _buffer(context, self.name)
        if deepep.allocated():
            context.done.weights_touched = True
            deepep.clear_buffer()

    def probe(self, context: ActionContext) -> None:
        self._expect(not _buffer(context, self.name).allocated(), "no buffer", "a buffer that is allocated")


class RecreateDeepEPBuffer(Action):
    """Create the buffer on the present EP group if there is none, then meet on it. Collective, blocks.

    It has no undo: destroying is collective. Until an epoch has booted, one that is there is given up first,
    because its group is created anew.
    """

    name = names.RECREATE_DEEPEP_BUFFER
    purpose = "create the DeepEP buffer on the present EP group"
    collective = True

    def precondition(self, context: ActionContext) -> None:
        _need_ep_group(context, self.name)

    def run(self, context: ActionContext) -> None:
        deepep = _buffer(context, self.name)
        if context.boots and isinstance(deepep, AbandonableBuffer):
            deepep.abandon_buffer()
        if not deepep.allocated():
            deepep.recreate_buffer()
        groups = context.runner.groups
        if groups is not None and GroupKind.EP in groups.kinds():
            groups.barrier(GroupKind.EP)

    def probe(self, context: ActionContext) -> None:
        self._expect(_buffer(context, self.name).allocated(), "an allocated buffer", "none")


class AbandonDeepEPBuffer(Action):
    """Free the buffer alone: a peer is dead, and what is collective over the EP group would hang."""

    name = names.ABANDON_DEEPEP_BUFFER
    purpose = "free the DeepEP buffer whose group broke with a peer"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        deepep = _buffer(context, self.name)
        context.done.weights_touched = True
        if not deepep.allocated():
            return
        if not isinstance(deepep, AbandonableBuffer):
            raise PreconditionError(
                action=self.name,
                found="the buffer can only be destroyed by all ranks together",
                fix="end this process and start the rank anew",
            )
        deepep.abandon_buffer()

    def probe(self, context: ActionContext) -> None:
        self._expect(not _buffer(context, self.name).allocated(), "no buffer", "a buffer that is allocated")
