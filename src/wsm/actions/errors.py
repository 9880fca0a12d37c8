"""What can go wrong in a unit of work, a plan, or a backend that carries one out.

Each type names the action or the surface concerned. Nothing here knows words, states or paddle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wsm.errors import BadInputError, GroupError, InternalError, NoRoomError, RefusedError


class PreconditionError(RefusedError):
    """An action must not begin; nothing was changed by it."""

    def __init__(self, *, action: str, found: str, fix: str) -> None:
        super().__init__(
            f"{action} must not begin: {found}; {fix}",
            action=action,
            found=found,
            fix=fix,
        )


class PostconditionError(GroupError):
    """An action returned, but measuring shows that its work is not done."""

    def __init__(self, *, action: str, expected: str, found: str) -> None:
        super().__init__(
            f"{action} returned, but it is not done: expected {expected}, found {found}; "
            "the rank must not go on, clear the group before the next update",
            action=action,
            expected=expected,
            found=found,
        )


def surface_missing(*, action: str, surface: str) -> InternalError:
    """A plan holds an action whose surface the engine does not have."""
    return InternalError(
        f"{action} needs the surface {surface!r}, and this runner has None there; "
        "derive the plans from PlanOptions.from_runner() of this very runner",
        action=action,
        surface=surface,
        code="surface-missing",
    )


def load_incomplete(missing: tuple[str, ...], *, found: str) -> BadInputError:
    """Return the error of a load function that does not say what it has loaded."""
    return BadInputError(
        f"the load function returned a {found} without {', '.join(missing)}; return a wsm.Loaded, "
        "or a mapping with all of these",
        code="load-incomplete",
        unfit=True,
        missing=missing,
    )


def surface_incomplete(missing: Mapping[str, tuple[str, ...]]) -> BadInputError:
    """Return the error of surfaces that lack methods; an empty tuple: the surface is not there at all."""
    said = "; ".join(
        f"{place} lacks {', '.join(names)}" if names else f"{place} is missing"
        for place, names in missing.items()
    )
    return BadInputError(
        f"the runner does not offer what every engine must: {said}; add it, see wsm.actions.surfaces",
        code="surface-incomplete",
        missing=dict(missing),
    )


def policy_refused(*, plan: str, policy: str, supported: Sequence[str]) -> RefusedError:
    """A policy of the command cannot be honoured by the plan that would serve it."""
    return RefusedError(
        f"the plan {plan!r} cannot honour {policy}, nothing was changed; ask for: {', '.join(supported)}",
        plan=plan,
        policy=policy,
        supported=tuple(supported),
        code="policy-refused",
    )


def policy_impossible(*, why: str) -> RefusedError:
    """A policy of the command is about requests that a hold has set aside, and cannot be honoured."""
    return RefusedError(f"{why}; nothing was changed", code="policy-refused", why=why)


def staging_unsupported(*, weights: str) -> NoRoomError:
    """The engine's weights cannot hold a second version beside the served one."""
    return NoRoomError(
        f"the weight surface {weights} cannot stage a second version; nothing was changed: "
        "update without --hot, or give the surface a stage() method (wsm.actions.surfaces)",
        weights=weights,
        code="staging-unsupported",
    )


def staging_memory(*, needed: int, reserve: int, available: int, ranks: int) -> NoRoomError:
    """A second version does not fit beside the served one."""
    return NoRoomError(
        f"staging needs {needed} bytes for {ranks} rank(s), with {reserve} more to stay free, and "
        f"{available} are available; nothing was changed: update without --hot, or free memory",
        needed=needed,
        reserve=reserve,
        available=available,
        ranks=ranks,
        code="staging-memory",
    )


def plan_order(*, plan: str, rule: str, why: str) -> InternalError:
    """A plan breaks a declared order constraint."""
    return InternalError(
        f"the plan {plan!r} breaks the rule {rule!r} ({why}); change the plan, not the rule",
        plan=plan,
        rule=rule,
        why=why,
        code="plan-order",
    )


def plan_options(*, option: str, value: object, allowed: str) -> BadInputError:
    """The options that plans are derived from contradict themselves or each other."""
    return BadInputError(
        f"plan option {option} = {value!r} cannot be: {allowed}",
        option=option,
        value=value,
        allowed=allowed,
        code="plan-options",
    )


def storage_moved(*, tensors: Sequence[str], total: int) -> GroupError:
    """Tensors lie elsewhere than where something has captured them."""
    return GroupError(
        f"{total} tensor(s) moved although their addresses are captured, first: {', '.join(tensors)}; "
        "load in place, or drop and capture the graphs around the update",
        tensors=tuple(tensors),
        total=total,
        code="storage-moved",
    )
