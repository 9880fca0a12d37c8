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


class SurfaceMissingError(InternalError):
    """A plan holds an action whose surface the engine does not have."""

    def __init__(self, *, action: str, surface: str) -> None:
        super().__init__(
            f"{action} needs the surface {surface!r}, and this runner has None there; "
            "derive the plans from PlanOptions.from_runner() of this very runner",
            action=action,
            surface=surface,
        )


def load_incomplete(missing: tuple[str, ...], *, found: str) -> BadInputError:
    """Return the error of a load function that does not say what it has loaded."""
    return BadInputError(
        f"the load function returned a {found} without {', '.join(missing)}; return a wsm.Loaded, "
        "or a mapping with all of these",
        code="load-incomplete",
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


class PolicyRefusedError(RefusedError):
    """A policy of the command cannot be honoured by the plan that would serve it."""

    def __init__(self, *, plan: str, policy: str, supported: Sequence[str]) -> None:
        super().__init__(
            f"the plan {plan!r} cannot honour {policy}, nothing was changed; ask for: {', '.join(supported)}",
            plan=plan,
            policy=policy,
            supported=tuple(supported),
        )


class StagingUnsupportedError(NoRoomError):
    """The engine's weights cannot hold a second version beside the served one."""

    def __init__(self, *, weights: str) -> None:
        super().__init__(
            f"the weight surface {weights} cannot stage a second version; nothing was changed: "
            "update without --hot, or give the surface a stage() method (wsm.actions.surfaces)",
            weights=weights,
        )


class StagingMemoryError(NoRoomError):
    """A second version does not fit beside the served one."""

    def __init__(self, *, needed: int, reserve: int, available: int, ranks: int) -> None:
        super().__init__(
            f"staging needs {needed} bytes for {ranks} rank(s), with {reserve} more to stay free, and "
            f"{available} are available; nothing was changed: update without --hot, or free memory",
            needed=needed,
            reserve=reserve,
            available=available,
            ranks=ranks,
        )


class PlanOrderError(InternalError):
    """A plan breaks a declared order constraint."""

    def __init__(self, *, plan: str, rule: str, why: str) -> None:
        super().__init__(
            f"the plan {plan!r} breaks the rule {rule!r} ({why}); change the plan, not the rule",
            plan=plan,
            rule=rule,
            why=why,
        )


class PlanOptionsError(BadInputError):
    """The options that plans are derived from contradict themselves or each other."""

    def __init__(self, *, option: str, value: object, allowed: str) -> None:
        super().__init__(
            f"plan option {option} = {value!r} cannot be: {allowed}",
            option=option,
            value=value,
            allowed=allowed,
        )


class StorageMovedError(GroupError):
    """Tensors lie elsewhere than where something has captured them."""

    def __init__(self, *, tensors: Sequence[str], total: int) -> None:
        super().__init__(
            f"{total} tensor(s) moved although their addresses are captured, first: {', '.join(tensors)}; "
            "load in place, or drop and capture the graphs around the update",
            tensors=tuple(tensors),
            total=total,
        )
