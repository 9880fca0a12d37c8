"""What can go wrong in the demo itself. Knows no group and no trainer."""

from __future__ import annotations

from wsm.errors import BadInputError, GroupError


class TrainerFailedError(GroupError):
    """The trainer's process ended, hung, or answered with an error."""

    def __init__(self, *, request: str, problem: str, detail: str = "") -> None:
        tail = f": {detail}" if detail else ""
        super().__init__(
            f"the trainer {problem} while it was to {request}{tail}; its standard error says more",
            request=request,
            problem=problem,
            detail=detail,
        )


class DemoSettingsError(BadInputError):
    """A setting of the demo is not what it must be."""

    def __init__(self, *, setting: str, value: object, remedy: str) -> None:
        super().__init__(
            f"demo: {setting} is {value!r}; {remedy}", setting=setting, value=value, remedy=remedy
        )
