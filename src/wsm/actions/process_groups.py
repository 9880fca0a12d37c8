"""Communicators: shut down from the innermost out, restarted from the outermost in.

Responsible for one group per action and for the two orders: EP, TP, world down; world, TP, EP up.
It must not know which library carries a group, nor what lives on it (the plan's order does).
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.surfaces import AbandonableGroups, GroupKind, ProcessGroupSurface, require

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
    """Let go of every communicator alone: a peer is dead, so they are broken and nobody can meet on them.

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
