"""The errors of the reference rollout group, each with its facts as attributes.

Knows no paddle and no sockets. A worker sends ``type`` and message of these over its request socket;
:mod:`examples.rollout.client` raises them again as :class:`GenerationRefusedError`.
"""

from __future__ import annotations

from typing import Any

from wsm.errors import BadInputError, GroupError, RefusedError, coded
from wsm.status.facts import who


@coded("bad-model-shape")
def bad_model_shape(*, field: str, value: Any, reason: str) -> BadInputError:
    """The sizes of a model do not fit each other, or do not fit the number of ranks."""
    return BadInputError(f"model shape: {field}={value!r} {reason}; correct it under `model:`")


@coded("bad-rollout-config")
def bad_rollout_config(*, source: str, field: str, reason: str) -> BadInputError:
    """A rollout configuration is not what it must be."""
    return BadInputError(f"rollout configuration {source}: {field} {reason}")


@coded("bad-shard")
def bad_shard(
    *,
    where: str,
    missing: list[str] | None = None,
    unknown: list[str] | None = None,
    name: str = "",
    found: tuple[int, ...] = (),
    expected: tuple[int, ...] = (),
) -> BadInputError:
    """Weights that are to be split or put together are not this model's weights."""
    what = f"{name} has extents {found}, expected {expected}" if name else ""
    if missing:
        what = f"lacks {len(missing)} parameters, such as {missing[0]}"
    if unknown:
        what += f"{' and ' if what else ''}has {len(unknown)} unknown ones, such as {unknown[0]}"
    return BadInputError(
        f"{where}: {what}; use the model shape that the weights were made with",
        missing=missing or [],
        unknown=unknown or [],
    )


def step_permit_missing() -> RefusedError:
    """A forward pass was asked for outside a step."""
    return RefusedError(
        "a forward pass needs the permit of the running step: call it inside `with worker.step() as permit:`",
        code="step-permit-missing",
    )


@coded("stale-graph")
def stale_graph(*, graph: str, name: str, reason: str) -> RefusedError:
    """A captured execution no longer fits the memory that it was captured for."""
    return RefusedError(
        f"captured execution {graph!r} refuses to run: {name} {reason}; "
        "capture it again after the weights are loaded"
    )


@coded("no-exchange-buffer")
def no_exchange_buffer(*, reason: str, remedy: str) -> RefusedError:
    """The expert-parallel exchange buffer is not usable as it is."""
    return RefusedError(f"expert-parallel exchange buffer: {reason}; {remedy}")


@coded("bad-request")
def bad_request(*, field: str, reason: str) -> BadInputError:
    """A generation request is not what it must be."""
    return BadInputError(f"request: {field} {reason}")


@coded("queue-full")
def queue_full(*, asked: int, room: int) -> RefusedError:
    """More requests would wait than the group is configured for."""
    return RefusedError(
        f"{asked} requests do not fit, there is room for {room}; "
        "submit when some are answered, or raise engine.max_waiting"
    )


class FrameError(BadInputError):
    """Bytes on the request socket are no message."""

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"request socket: {problem}; the connection is closed", problem=problem)


class RolloutUnreachableError(GroupError):
    """No process takes requests for the group; `retryable` where its supervisor lives, or did just now."""

    def __init__(self, *, group: str, reason: str, retryable: bool = False) -> None:
        fix = (
            "ask again (retryable): its rank 0 is being replaced or was asked to end"
            if retryable
            else f"start it with `python -m examples.rollout --name {group}`"
        )
        super().__init__(
            f"rollout group {group!r} takes no requests ({reason}); {fix}",
            group=group,
            reason=reason,
            retryable=retryable,
        )


class ClientTimeoutError(GroupError):
    """An answer did not come in time."""

    def __init__(self, *, group: str, seconds: float) -> None:
        super().__init__(
            f"no answer from rollout group {group!r} within {seconds:.3g} s; "
            f"`wsm status {group}` shows what it does",
            group=group,
            seconds=seconds,
        )


class GenerationRefusedError(RefusedError):
    """The group did not take a request; none of the call was begun.

    Attributes
    ----------
    error, cause : str
        Code or type of the error on the other side, such as ``bad-request`` or ``queue-full``, and its text.
    """

    def __init__(self, *, group: str, error: str, cause: str) -> None:
        super().__init__(f"rollout group {group!r} refused: {cause}", group=group, error=error, cause=cause)


class GroupNotReadyError(GroupError):
    """The processes of a group did not attach in time.

    Attributes
    ----------
    log : str
        The last lines of the first of them.
    """

    def __init__(self, *, group: str, ranks: list[int], seconds: float, log: str) -> None:
        last = log.splitlines()[-1] if log else "nothing yet"
        super().__init__(
            f"rollout group {group!r}: ranks {ranks} did not attach within {seconds:.3g} s; the first "
            f"of them wrote last: {last}; on a busy machine give them longer "
            "('recovery: {start_s: ...}' in the configuration)",
            group=group,
            ranks=ranks,
            seconds=seconds,
            log=log,
        )


@coded("requests-lost")
def requests_lost(*, group: str, cause: str) -> GroupError:
    """A rank was lost while the requests ran; they were not answered, and may be asked again.

    Attributes
    ----------
    cause : str
        What the group said.
    """
    return GroupError(
        f"rollout group {group!r} lost requests: {cause}; ask again (retryable), or set retry_s",
        retryable=True,
    )


class RankExitedError(GroupError):
    """A rank's process ended by itself.

    Attributes
    ----------
    log : str
        The last lines that it wrote.
    """

    def __init__(self, *, rank: int, code: int, log: str) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        last = log.splitlines()[-1] if log else "nothing"
        super().__init__(
            f"{who(rank)} {how}; the last it wrote: {last}; start the group again",
            rank=rank,
            exit_code=code,
            log=log,
        )
