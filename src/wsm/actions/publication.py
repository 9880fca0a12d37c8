"""The last action of a plan: it declares what the receipt will say, and nothing is true before it.

The worker publishes a status word after a plan's last action and never earlier, so that CLEARED
means "the memory is free" (FastDeploy published it before the KV cache was freed) and PREPARED
means "loaded, verified, ready to step". This module knows no words; it only refuses to end a plan
whose facts are incomplete.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.actions.surfaces import GroupKind

#: What every load must have reported by the time the rank says PREPARED.
PREPARED_FACTS = ("version", "manifest_digest", "digest", "bytes", "tensors")

#: What every clear must have measured by the time the rank says CLEARED.
CLEARED_FACTS = ("resident_bytes_after", "dropped_bytes", "drop_measurable")


def _expect_facts(context: ActionContext, wanted: tuple[str, ...], action: str) -> None:
    missing = [fact for fact in wanted if fact not in context.facts]
    if missing:
        raise PostconditionError(
            action=action, expected="facts for the receipt", found=f"no {', '.join(missing)}"
        )


def _expect_version(context: ActionContext, action: str) -> None:
    _expect_facts(context, PREPARED_FACTS, action)
    if context.version is not None and context.facts["version"] != context.version:
        raise PostconditionError(
            action=action,
            expected=f"version {context.version}",
            found=f"version {context.facts['version']}",
        )


class DeclareCleared(Action):
    """Everything is released and measured; say what is still up."""

    name = names.DECLARE_CLEARED
    purpose = "declare what was freed"

    def run(self, context: ActionContext) -> None:
        """Complete the facts: ``groups_up`` (kinds) and ``deepep_up``. Local.

        Raises
        ------
        PostconditionError
            If nothing was measured.
        """
        _expect_facts(context, CLEARED_FACTS, self.name)
        runner = context.runner
        kinds: list[GroupKind] = [] if runner.groups is None else list(runner.groups.kinds())
        context.facts["groups_up"] = [
            kind.value for kind in kinds if runner.groups is not None and runner.groups.alive(kind)
        ]
        context.facts["deepep_up"] = runner.deepep is not None and runner.deepep.allocated()


class DeclareStaged(Action):
    """The new version stands beside the served one, verified and ready to flip; the decision is missing.

    Parameters
    ----------
    has_weights : bool
        Whether this participant stages any.
    """

    name = names.DECLARE_STAGED
    purpose = "declare the version that is staged"

    def __init__(self, *, has_weights: bool = True) -> None:
        self._has_weights = has_weights

    def run(self, context: ActionContext) -> None:
        """As :meth:`DeclarePrepared.run`. Local."""
        if self._has_weights:
            _expect_version(context, self.name)


class DeclarePrepared(Action):
    """What was asked for is there and verified; only the group's decision is missing.

    Parameters
    ----------
    has_weights : bool
        Whether there are weights then, loaded now or held all along, that the receipt must name.
    """

    name = names.DECLARE_PREPARED
    purpose = "declare the version that is ready"

    def __init__(self, *, has_weights: bool = True) -> None:
        self._has_weights = has_weights

    def run(self, context: ActionContext) -> None:
        """Check that the load is fully described, and that it is the version that was asked for. Local.

        Raises
        ------
        PostconditionError
            If a fact is missing or another version was loaded.
        """
        if self._has_weights:
            _expect_version(context, self.name)
