"""A version that every rank has staged and voted for, while vLLM serves and its caller decides.

It is an update that waits before its pause: what is prepared holds its place among updates, until it is
committed, aborted, or its lease is over.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from wsm.errors import RefusedError
from wsm.vllm.extension import error_value
from wsm.vllm.fanout import UpdateEnd

_NOT_COMMITTED = {
    "aborted": "it was taken back before anything was loaded",
    "lease-over": "its caller did not decide in time; prepare it again, with a longer lease",
}


class Preparation:
    """One version that is prepared, under a request id.

    `update`: the task of the update, which ends with its receipt. `lease_s`: seconds from the votes to the
    decision.
    """

    update: asyncio.Task[dict[str, Any]]

    def __init__(self, request_id: str, lease_s: float) -> None:
        self.request_id, self.lease_s = request_id, lease_s
        self._verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._voted = asyncio.Event()
        self._over_s = 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the lease is over; None: no decision is awaited, not yet or not any more."""
        undecided = self._voted.is_set() and not self._verdict.done()
        return max(self._over_s - time.monotonic(), 0.0) if undecided else None

    async def await_votes(self) -> bool:
        """Wait until all ranks have voted; False: the update has ended before."""
        return await comes_first(self._voted, self.update)

    async def await_commit(self, end: UpdateEnd) -> bool:
        """Say that all ranks have voted, and wait for the decision; if it is no commit, `end` says why."""
        self._over_s = time.monotonic() + self.lease_s
        self._voted.set()
        done, _ = await asyncio.wait({self._verdict}, timeout=self.lease_s)
        self._verdict.cancel()
        if done and self._verdict.result():
            return True
        end.errors.append(error_value(self._not_committed("aborted" if done else "lease-over")))
        return False

    def _not_committed(self, code: str) -> RefusedError:
        return RefusedError(f"{self.request_id} is not committed: {_NOT_COMMITTED[code]}", code=code)

    async def decide(self, *, commit: bool) -> dict[str, Any]:
        """Commit it or take it back, and return the receipt.

        Raises
        ------
        RefusedError
            If it is decided otherwise (``decided-otherwise``), its lease is over (``lease-over``), or not all
            ranks have voted yet (``not-prepared``).
        """
        if commit and not self._voted.is_set():
            refused = self.update.result()["error"] if self.update.done() else None
            if refused is None:
                problem = f"the ranks still prepare {self.request_id}; commit it once that is answered"
                raise RefusedError(problem, code="not-prepared", retryable=True)
            problem = f"{self.request_id} was refused ({refused['code']}: {refused['message']})"
            fix = "prepare it again, under another request id"
            raise RefusedError(f"{problem}; {fix}", code="not-prepared", refused=refused["code"])
        if not self._verdict.done():
            self._verdict.set_result(commit)
        if self._verdict.cancelled():
            raise self._not_committed("lease-over")
        if self._verdict.result() is not commit:
            problem = f"{self.request_id} was decided otherwise; ask for a new update"
            raise RefusedError(problem, code="decided-otherwise")
        return await asyncio.shield(self.update)


async def comes_first(event: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait for an event, or the end of the task that would set it; return whether the task goes on."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return not task.done()
