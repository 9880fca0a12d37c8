"""What can be wrong with an event, a word or a table."""

from __future__ import annotations

from wsm.errors import BadInputError, InternalError, RefusedError


class IllegalTransitionError(RefusedError):
    """An event has no row in the state that the machine is in. Nothing was changed."""


class JointRuleError(IllegalTransitionError):
    """An event has a row, but would bring weights and KV cache together wrongly. Nothing was changed."""


def require_bools(**flags: object) -> None:
    """Refuse a flag of an event that is not exactly True or False: it would fail both guards of a row."""
    for flag, value in flags.items():
        if type(value) is not bool:
            is_now = f"{type(value).__name__} {value!r}"
            raise BadInputError(
                f"{flag} must be True or False, not {is_now}; convert it with bool()",
                code="flag",
                flag=flag,
                value=value,
            )


class ProtocolViolationError(InternalError):
    """A word says what the rules exclude: a bug, or a process that writes words it does not own."""

    def __init__(self, *, rank: int | None, rule: str, seen: str) -> None:
        who = "the controller" if rank is None else f"rank {rank}"
        super().__init__(
            f"{who} read {seen}, but {rule}; stop the group, keep its journals and report this",
            rank=rank,
            rule=rule,
            seen=seen,
        )


class EpochUsedError(RefusedError):
    """A process wants to join an epoch in which its slot was used by another process."""


class CommandOpenError(RefusedError):
    """The last command is not over on every rank; the next one must wait."""

    retryable = True

    def __init__(self, *, epoch: int, sequence: int, operation: str, waiting: dict[int, str]) -> None:
        working = ", ".join(f"rank {rank}: {what}" for rank, what in waiting.items())
        what = "not complete yet" if operation == "NONE" else f"still at command {sequence} ({operation})"
        super().__init__(
            f"the group is {what} in epoch {epoch} ({working}); "
            "ask again when that is over, or look at 'wsm status'",
            epoch=epoch,
            sequence=sequence,
            operation=operation,
            waiting=waiting,
        )


class FieldOverflowError(BadInputError):
    """A field of a word has grown past its width; wrapping would make an old word look new."""

    def __init__(self, *, field: str, value: int, limit: int) -> None:
        super().__init__(
            f"{field} {value} does not fit its field (0..{limit}) and must not wrap; "
            "restart the group, which begins at epoch 1 and sequence 0 again",
            field=field,
            value=value,
            limit=limit,
        )


class WordFormatError(InternalError):
    """A word holds a code that this build does not know: torn, overwritten, or of another build."""

    def __init__(self, *, kind: str, word: int) -> None:
        super().__init__(
            f"the {kind} word {word:#018x} is none that this build of wsm writes; "
            "check that all processes of the group run the same version of wsm",
            kind=kind,
            word=word,
        )
