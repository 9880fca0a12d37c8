"""Communicators, and DeepEP's exchange buffer on the expert-parallel one: shut down, restarted, given up.

Responsible for the order of kinds and for never doing twice what was done once. It must not know how a
backend ends a communicator.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, PreconditionError
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


def incarnation(context: ActionContext, kind: GroupKind) -> str:
    """Name one creation of one group: the same on all ranks, never used twice in a run."""
    return f"{kind.value}-epoch{context.epoch}-seq{context.sequence}"


class ShutDownGroup(Action):
    """Tear one communicator down, after all its members have met on it for the last time.

    A group that is down already is left alone, so a second clear never shuts a group twice or meets
    on a dead one (FastDeploy#5710). Whether it is down is the same on all members, since only
    collective actions change it; a member for which that fails ends the epoch.

    Parameters
    ----------
    kind : GroupKind
        Which communicator.
    """

    collective = True
    touches_weights = True

    def __init__(self, kind: GroupKind) -> None:
        self.kind = kind
        self.name = names.SHUT_DOWN_GROUP[kind]
        self.purpose = f"shut the {kind.value} group down"

    def run(self, context: ActionContext) -> None:
        """Meet, then shut down. Collective, blocks for the slowest member."""
        groups = _groups(context, self.name)
        if not groups.alive(self.kind):
            return
        context.weights_touched = True
        groups.barrier(self.kind)
        groups.shut_down(self.kind)

    def probe(self, context: ActionContext) -> None:
        """Ask whether the group is down; PostconditionError if not."""
        if _groups(context, self.name).alive(self.kind):
            raise PostconditionError(
                action=self.name, expected=f"the {self.kind.value} group down", found="a group that is alive"
            )


class RestartGroup(Action):
    """Create one communicator anew if it is down, and prove it by a barrier.

    It has no undo: shutting down is collective. Where an update is discarded the group stays up, on
    every member alike, and the next update finds it there.

    Until an epoch has booted, one that is up is given up and created again: an update that failed in its
    middle may have left the group up on some members only.

    Parameters
    ----------
    kind : GroupKind
        Which communicator.
    """

    collective = True

    def __init__(self, kind: GroupKind) -> None:
        self.kind = kind
        self.name = names.RESTART_GROUP[kind]
        self.purpose = f"create the {kind.value} group anew"

    def run(self, context: ActionContext) -> None:
        """Create the group and meet on it. Collective, blocks for the slowest member."""
        groups = _groups(context, self.name)
        if context.boots and isinstance(groups, AbandonableGroups):
            groups.abandon(self.kind)
        if not groups.alive(self.kind):
            groups.restart(self.kind, incarnation=incarnation(context, self.kind))
        groups.barrier(self.kind)

    def probe(self, context: ActionContext) -> None:
        """Ask whether the group is up; PostconditionError if not."""
        if not _groups(context, self.name).alive(self.kind):
            raise PostconditionError(
                action=self.name, expected=f"the {self.kind.value} group alive", found="a group that is down"
            )


class AbandonGroups(Action):
    """Let go of every communicator alone: a peer is dead, so they are broken and no rank can meet on them.

    For a rank that outlives its epoch. The first update of the next epoch creates them anew.
    """

    name = names.ABANDON_GROUPS
    purpose = "let go of the communicators that broke with a peer"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        """Give them up. Local, never waits.

        Raises
        ------
        PreconditionError
            If one is up and cannot be given up alone: this process cannot outlive its epoch.
        """
        groups = _groups(context, self.name)
        context.weights_touched = True
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
        """Ask whether all are down; PostconditionError if not."""
        groups = _groups(context, self.name)
        up = [kind.value for kind in groups.kinds() if groups.alive(kind)]
        if up:
            raise PostconditionError(action=self.name, expected="every group down", found=f"{up} alive")


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
    """Destroy the buffer.

    Counts as touching: only all ranks together can recreate it, so a rank that has begun this cannot
    go back to serving on its own, and the group's outcome of an abort is CLEARED.
    """

    name = names.CLEAR_DEEPEP_BUFFER
    purpose = "destroy the DeepEP buffer"
    collective = True
    touches_weights = True

    def precondition(self, context: ActionContext) -> None:
        """Refuse on a dead EP group: the call would hang (PreconditionError)."""
        if _buffer(context, self.name).allocated():
            _need_ep_group(context, self.name)

    def run(self, context: ActionContext) -> None:
        """Destroy the buffer if it exists. Collective over the EP group, blocks for its slowest member.

        Whether it exists is the same on all ranks: it is only ever created and destroyed by all of them.
        """
        deepep = _buffer(context, self.name)
        if deepep.allocated():
            context.weights_touched = True
            deepep.clear_buffer()

    def probe(self, context: ActionContext) -> None:
        """Ask whether the buffer is gone; PostconditionError if not."""
        if _buffer(context, self.name).allocated():
            raise PostconditionError(
                action=self.name, expected="no buffer", found="a buffer that is allocated"
            )


class RecreateDeepEPBuffer(Action):
    """Create the buffer on the present EP group.

    It has no undo: destroying is collective. Where an update is discarded the buffer stays, and the
    next update finds it there on every rank alike. Until an epoch has booted, one that is there is given
    up first, because its group is created anew.
    """

    name = names.RECREATE_DEEPEP_BUFFER
    purpose = "create the DeepEP buffer on the present EP group"
    collective = True

    def precondition(self, context: ActionContext) -> None:
        """Refuse on a dead EP group (PreconditionError)."""
        _need_ep_group(context, self.name)

    def run(self, context: ActionContext) -> None:
        """Create the buffer if there is none, then meet on the EP group. Collective, blocks."""
        deepep = _buffer(context, self.name)
        if context.boots and isinstance(deepep, AbandonableBuffer):
            deepep.abandon_buffer()
        if not deepep.allocated():
            deepep.recreate_buffer()
        groups = context.runner.groups
        if groups is not None and GroupKind.EP in groups.kinds():
            groups.barrier(GroupKind.EP)

    def probe(self, context: ActionContext) -> None:
        """Ask whether the buffer is there; PostconditionError if not."""
        if not _buffer(context, self.name).allocated():
            raise PostconditionError(action=self.name, expected="an allocated buffer", found="none")


class AbandonDeepEPBuffer(Action):
    """Free the buffer alone: a peer is dead, and what is collective over the EP group would hang."""

    name = names.ABANDON_DEEPEP_BUFFER
    purpose = "free the DeepEP buffer whose group broke with a peer"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        """Free it. Local, never waits.

        Raises
        ------
        PreconditionError
            If only all ranks together can free it: this process cannot outlive its epoch.
        """
        deepep = _buffer(context, self.name)
        context.weights_touched = True
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
        """Ask whether the buffer is gone; PostconditionError if not."""
        if _buffer(context, self.name).allocated():
            raise PostconditionError(
                action=self.name, expected="no buffer", found="a buffer that is allocated"
            )
