"""One question to a group and what came of it: the controller's calls, told as data. Knows no process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from campaign.operations import operation_of
from wsm import Controller
from wsm.errors import WsmError
from wsm.receipt import Receipt

#: After these seconds without an answer, a caller is said to hang; every deadline is far shorter.
HANG_S = 60.0


class HangError(Exception):
    """Something did not come to an end that has a deadline."""


@dataclass(frozen=True)
class Answer:
    """What a caller was told, and when (monotonic clock, ns)."""

    receipt: Receipt | None
    error: BaseException | None
    at_ns: int

    @property
    def said(self) -> str:
        """The receipt's sentence or the error's message."""
        return self.receipt.sentence() if self.receipt is not None else str(self.error)


def ask(controller: Controller, name: str, version: int | None = None, *, deadline_s: float = 20.0) -> Answer:
    """Ask a group for what the operation `name` asks for and wait; never longer than :data:`HANG_S`.

    Raises
    ------
    HangError
        If there is no answer.
    """
    operation = operation_of(name)
    limits = {"deadline_s": deadline_s, "settle_s": deadline_s}
    options: dict[str, Any] = {**limits, **(operation.options or {})}
    try:
        if operation.command == "clear":
            pending = controller.begin_clear(**options)
        elif operation.command == "hold":
            pending = controller.begin_hold(wait_s=0.0, **options)
        elif operation.command == "release":
            pending = controller.begin_release(wait_s=0.0, **options)
        else:
            pending = controller.begin_update(version, hot=operation.command == "hot", **options)
        receipt = pending.result(HANG_S)
    except TimeoutError as error:
        raise HangError(f"{name} has no answer after {HANG_S:g} s") from error
    except WsmError as error:
        return Answer(None, error, time.monotonic_ns())
    return Answer(receipt, None, time.monotonic_ns())
