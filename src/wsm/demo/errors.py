"""What can go wrong in the demo itself. Knows no group and no trainer."""

from __future__ import annotations

from collections.abc import Mapping

from wsm.errors import BadInputError, GroupError


def trainer_failed(*, request: str, problem: str, detail: str = "") -> GroupError:
    """The trainer's process ended, hung, or answered with an error."""
    tail = f": {detail}" if detail else ""
    return GroupError(
        f"the trainer {problem} while it was to {request}{tail}; its standard error says more",
        code="trainer-failed",
        request=request,
        problem=problem,
        detail=detail,
    )


def bad_demo_settings(*, setting: str, value: object, remedy: str) -> BadInputError:
    """A setting of the demo is not what it must be."""
    return BadInputError(
        f"demo: {setting} is {value!r}; {remedy}",
        code="bad-demo-settings",
        setting=setting,
        value=value,
        remedy=remedy,
    )


def weights_differ(
    *, version: str | None, held: Mapping[str, str | None], published: Mapping[str, str]
) -> GroupError:
    """A rank serves other bytes than the trainer published, although the update succeeded."""
    wrong = [rank for rank in published if held.get(rank) != published[rank]]
    who = f"rank {', '.join(wrong)}" if wrong else "the group's manifest"
    return GroupError(
        f"version {version}: {who} has another digest than the trainer published; "
        "do not trust this group's answers, and report this as a bug in wsm",
        code="weights-differ",
        version=version,
        held=dict(held),
        published=dict(published),
    )


def impossible_journal(*, rank: int, index: int, reason: str) -> GroupError:
    """A rank did something that the transition tables do not know."""
    return GroupError(
        f"entry {index} of the journal of rank {rank} is no behaviour of the tables: {reason}; "
        "keep the journals, and report this as a bug in wsm",
        code="impossible-journal",
        rank=rank,
        index=index,
        reason=reason,
    )
