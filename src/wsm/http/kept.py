"""What outlives a server: the end of each request by its id, and why a hold is closed. One file, bounded.

A line of JSON for each thing that happens, appended before a caller is told of it; what a kill tore is left
out when it is read. A file that cannot be written any more ends the file, never a command.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from wsm import log
from wsm.shared_directory import ForeignPathError, open_to_append, read_ours

#: Requests that are kept, the newest.
KEPT_REQUESTS: Final = 1000

#: Bytes of a file after which it is written anew with what it means.
_FILE_BYTES = 16 << 20


class KeptRequests:
    """The requests of one group and their ends. Safe for threads.

    Parameters
    ----------
    path : path or None
        Where they are kept; None: in memory alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._closed: dict[str, Any] | None = None
        if path is not None:
            self._read(path)

    @property
    def closed(self) -> dict[str, Any] | None:
        """Why the hold that was closed last is closed, and which it is; None: none is."""
        return self._closed

    def request(self, request_id: str) -> dict[str, Any] | None:
        """Return what is kept of a request."""
        with self._lock:
            found = self._requests.get(request_id)
            return None if found is None else dict(found)

    def keep(self, request: dict[str, Any]) -> None:
        """Keep what a request is now, in the place of what it was. Blocks for a write."""
        with self._lock:
            self._take(request)
            self._append({"request": request})

    def close(self, closed: dict[str, Any] | None) -> None:
        """Keep why a hold is closed, or that none is. Blocks for a write."""
        with self._lock:
            if self._closed != closed:
                self._closed = closed
                self._append({"closed": closed})

    def _take(self, request: dict[str, Any]) -> None:
        name = request["request_id"]
        self._requests.pop(name, None)
        self._requests[name] = request
        while len(self._requests) > KEPT_REQUESTS:
            self._requests.popitem(last=False)

    def _read(self, path: Path) -> None:
        try:
            lines = read_ours(path).splitlines()
        except FileNotFoundError:
            return
        except (OSError, ForeignPathError) as error:
            self._end(error)
            return
        for line in lines:
            try:
                said = json.loads(line)
                if "closed" in said:
                    self._closed = said["closed"]
                elif isinstance(said["request"]["request_id"], str):
                    self._take(said["request"])
            except (ValueError, KeyError, TypeError, RecursionError):  # noqa: PERF203 - a line that a kill tore
                continue

    def _append(self, said: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            descriptor = open_to_append(self._path, reads=True)
            try:
                size = os.fstat(descriptor).st_size
                lines = [said]
                if size > _FILE_BYTES:
                    os.ftruncate(descriptor, 0)
                    size, lines = (
                        0,
                        [{"closed": self._closed}, *({"request": each} for each in self._requests.values())],
                    )
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                text = "".join(f"{json.dumps(line, default=str)}\n" for line in lines)
                os.write(descriptor, b"\n" * torn + text.encode())
            finally:
                os.close(descriptor)
        except (OSError, ForeignPathError) as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        log.logger("http").error(log.RECEIPTS_ENDED, path=str(self._path), error=str(error))
        self._path = None
