"""An engine that has everything, so that every action that there is stands in the drawings.

Derived, not listed: whatever an engine may have or not, this one has, as long as no action is lost by it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.errors import BadInputError


def engine_with_everything() -> PlanOptions:
    """Return options under which no action is missing."""
    options = PlanOptions(auxiliaries=("mtp",), group_kinds=tuple(GroupKind))
    for option in fields(PlanOptions):
        if option.type in ("bool", "bool | None"):
            change: dict[str, Any] = {option.name: True}
            try:
                fuller = replace(options, **change)
            except BadInputError:  # no engine has both
                continue
            if actions_of(fuller) >= actions_of(options):
                options = fuller
    return options


def actions_of(options: PlanOptions) -> frozenset[str]:
    """Return the names of all actions in the plans of an engine."""
    return frozenset(action.name for plan in derive_plans(options) for action in plan)
