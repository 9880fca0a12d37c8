"""One question to a group and what came of it: the controller's calls, told as data. Knows no process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from campaign.operations import Operation, operation_of
from wsm import Controller, Pending
from wsm.errors import WsmError
from wsm.receipt import Receipt

#: After these seconds without an answer, a caller is said to hang; every deadline is far shorter.
HANG_S = 60.0


class HangError(Exception):
    """Something did not come to an end that has a deadline."""


@dataclass(frozen=True)
class Answer:
    """What a caller was told, and when (monotonic clock, ns).

    `may_commit`: whether it may have been committed; not where its caller was asked, and had not said so.
    """

    receipt: Receipt | None
    error: BaseException | None
    at_ns: int
    may_commit: bool = True

    @property
    def said(self) -> str:
        """The receipt's sentence or the error's message."""
        return self.receipt.sentence() if self.receipt is not None else str(self.error)


def ask(
    controller: Controller,
    name: str,
    version: int | None = None,
    *,
    deadline_s: float = 20.0,
    lease_s: float = 20.0,
    wait_s: float = 0.0,
    prepared: Callable[[], object] = bool,
) -> Answer:
    """Ask a group for what the operation `name` asks for and wait; never longer than :data:`HANG_S`.

    `prepared` is called once all have prepared what its caller decides, before it does; `lease_s` are the
    seconds that it has for that. `wait_s` is how long a command waits for its turn.

    Raises
    ------
    HangError
        If there is no answer.
    """
    operation = operation_of(name)
    limits = {"deadline_s": deadline_s, "settle_s": deadline_s, "wait_s": wait_s}
    options: dict[str, Any] = {**limits, **(operation.options or {})}
    may_commit = not operation.decision
    try:
        if operation.decision:
            decide = _prepare(controller, operation, version, {**options, "lease_s": lease_s})
            prepared()
            may_commit = operation.decision == "commit"
            pending = decide()
        elif operation.command == "clear":
            pending = controller.begin_clear(**options)
        elif operation.command == "hold":
            pending = controller.begin_hold(**options)
        elif operation.command == "release":
            pending = controller.begin_release(**options)
        else:
            pending = controller.begin_update(version, hot=operation.command == "hot", **options)
        receipt = pending.result(HANG_S)
    except TimeoutError as error:
        raise HangError(f"{name} has no answer after {HANG_S:g} s") from error
    except WsmError as error:
        return Answer(None, error, time.monotonic_ns(), may_commit)
    return Answer(receipt, None, time.monotonic_ns(), may_commit)


def _prepare(
    controller: Controller, operation: Operation, version: int | None, options: dict[str, Any]
) -> Callable[[], Pending]:
    """Let all ranks prepare it; return what makes the caller's decision."""
    hot, commits = operation.command == "hot", operation.decision == "commit"
    if not operation.leased:
        # What the abort leaves is asked here, not the restore behind it.
        prepared = controller.begin_prepare(version, hot=hot, on_failure="clear", **options).wait(HANG_S)
        return prepared.begin_commit if commits else prepared.begin_abort
    request_id = controller.begin_lease(version, hot=hot, **options).result(HANG_S).request_id
    decide = controller.begin_commit if commits else controller.begin_abort
    return lambda: decide(request_id, settle_s=options["settle_s"], wait_s=1.0)
