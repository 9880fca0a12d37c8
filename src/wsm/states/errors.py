"""What can be wrong with an event, a word, a table or a journal."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, InternalError, RefusedError


class IllegalTransitionError(RefusedError):
    """An event has no row in the state that the machine is in. Nothing was changed."""

    def __init__(self, *, machine: str, state: str, event: str, legal: Sequence[str]) -> None:
        super().__init__(
            f"{event!r} is refused while {machine} is {state}; legal there: {', '.join(legal)}",
            machine=machine,
            state=state,
            event=event,
            legal=tuple(legal),
        )


class JointRuleError(IllegalTransitionError):
    """An event has a row, but would bring weights and KV cache together wrongly. Nothing was changed."""

    def __init__(self, *, machine: str, state: str, event: str, joint: str, why: str) -> None:
        RefusedError.__init__(
            self,
            f"{event!r} is refused while {machine} is {state} ({joint}): {why}",
            machine=machine,
            state=state,
            event=event,
            joint=joint,
            why=why,
        )


def flag_not_bool(*, flag: str, value: object) -> BadInputError:
    """Return the error that a flag of an event is not exactly True or False. Nothing was changed."""
    return BadInputError(
        f"{flag} must be True or False, not {type(value).__name__} {value!r}; convert it with bool()",
        code="flag",
        flag=flag,
        value=value,
    )


def concurrent_fire(*, event: str) -> InternalError:
    """Return the error that two threads fired events into one life cycle at the same time."""
    return InternalError(
        f"{event!r} was fired while another event was being taken in; "
        "one thread at a time may drive a life cycle, the one that runs the event loop",
        code="concurrent-fire",
        event=event,
    )


def machine_disagrees(*, machine: str, event: str, expected: str, found: str) -> InternalError:
    """Return the error that a machine did something else than its table says."""
    return InternalError(
        f"the {machine} machine answered {event!r} with {found}, its table says {expected}; "
        "this is a bug in wsm, or a version of transitions that wsm was not tested with",
        code="machine-disagrees",
        machine=machine,
        event=event,
        expected=expected,
        found=found,
    )


class JournalCapacityError(BadInputError):
    """A journal was asked to hold less than one entry."""

    def __init__(self, *, capacity: int) -> None:
        super().__init__(
            f"a journal cannot hold {capacity} entries; give it a capacity of 1 or more", capacity=capacity
        )


class JournalFormatError(BadInputError):
    """A line of an exported journal is not what this build writes."""

    def __init__(self, *, line: int, problem: str) -> None:
        super().__init__(
            f"line {line} of the journal is unusable: {problem}; "
            "read it with the version of wsm that wrote it, or cut the file before that line",
            line=line,
            problem=problem,
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

    def __init__(self, *, rank: int, epoch: int) -> None:
        super().__init__(
            f"rank {rank} was already taken in epoch {epoch}, and a replacement joins only an epoch "
            "that its slot never used; restart the group",
            rank=rank,
            epoch=epoch,
        )


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
