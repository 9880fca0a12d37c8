"""What can go wrong in the demo itself. Knows no group and no trainer."""

from __future__ import annotations

from collections.abc import Mapping

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


class WeightsDifferError(GroupError):
    """A rank serves other bytes than the trainer published, although the update succeeded."""

    def __init__(
        self, *, version: int | None, held: Mapping[str, str | None], published: Mapping[str, str]
    ) -> None:
        wrong = [rank for rank in published if held.get(rank) != published[rank]]
        who = f"rank {', '.join(wrong)}" if wrong else "the group's manifest"
        super().__init__(
            f"version {version}: {who} has another digest than the trainer published; "
            "do not trust this group's answers, and report this as a bug in wsm",
            version=version,
            held=dict(held),
            published=dict(published),
        )


class ImpossibleJournalError(GroupError):
    """A rank did something that the transition tables do not know."""

    def __init__(self, *, rank: int, index: int, reason: str) -> None:
        super().__init__(
            f"entry {index} of the journal of rank {rank} is no behaviour of the tables: {reason}; "
            "keep the journals, and report this as a bug in wsm",
            rank=rank,
            index=index,
            reason=reason,
        )
