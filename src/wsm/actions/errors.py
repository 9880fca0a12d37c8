"""What an action raises by its contract: it must not begin, or it returned and is not done."""

from __future__ import annotations

from wsm.errors import GroupError, RefusedError


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
