"""The DeepEP exchange buffer: destroyed before the group it lives on, recreated on the new one.

Destroying it is collective and needs the EP group alive; left to a destructor it hangs
(DeepEP#571, TRT-LLM#12060). This module must not know how a group is shut down, only that the
buffer goes first.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.surfaces import AbandonableBuffer, DeepEPSurface, GroupKind, require


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
