"""Several API servers of one vLLM: the first has what wsm knows, and the others ask it.

Theory of operation
-------------------
Updates, their lock, their receipts and the gate are one process'. The others pass on what is asked of wsm,
through a Unix socket in this user's directory. At each request for text they look for a file beside it, which
lies there while the gate is open; without it the request is passed on, too, and the first server says why it
is refused. A server that dies takes vLLM with it, so that none comes after the first.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress

import httpx
from starlette.types import ASGIApp

from wsm.http._serving import Listening, serve_within
from wsm.http.upstream import Upstream
from wsm.shared_directory import private_directory, try_lock_file

_NAMES = "vllm-api-"
#: Seconds between two looks whether the first server is up, and whether its gate is open.
_LOOK_S = 0.1


class ApiServers:
    """The API servers of the vLLM that this process belongs to, or of another one of this user's."""

    def __init__(self, name: str | None = None) -> None:
        parent = multiprocessing.parent_process()
        # They have one parent, whose key they inherit; in another container a parent may have its number.
        key = f"{parent.pid if parent else os.getpid()}".encode() + multiprocessing.current_process().authkey
        self._socket = private_directory() / (name or f"{_NAMES}{hashlib.sha256(key).hexdigest()[:16]}")
        self._open, self._lock = self._socket.with_suffix(".open"), self._socket.with_suffix(".lock")

    def is_open(self) -> bool:
        """Whether the first server lets requests for text in."""
        return self._open.exists()

    async def first(self) -> Upstream:
        """Return the first server, once it is up."""
        while not self._socket.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(_LOOK_S)
        return Upstream("http://first", transport=httpx.AsyncHTTPTransport(uds=str(self._socket)))

    def say(self, *, is_open: bool) -> None:
        """Let the others know whether requests for text may come in."""
        self._open.touch() if is_open else self._open.unlink(missing_ok=True)

    def remove_names(self) -> None:
        """Remove what the first server has left, which vLLM kills at its end."""
        for path in (self._socket, self._open, self._lock):
            path.unlink(missing_ok=True)

    async def lead(self, app: ASGIApp, is_open: Callable[[], bool]) -> None:
        """Answer the others by `app`, and say whether the gate is open, until this is cancelled."""
        for path in private_directory().glob(f"{_NAMES}*.lock"):
            left = try_lock_file(path)
            if left is not None:
                ApiServers(path.stem).remove_names()
                left.release()
        serving = asyncio.ensure_future(serve_within(app, Listening(uds=self._socket)))
        try:
            while not serving.done():
                self.say(is_open=is_open())
                await asyncio.wait({serving}, timeout=_LOOK_S)
            serving.result()
        finally:
            self.say(is_open=False)
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
