"""What outlives a server: ends of requests, why a hold is closed, what is remembered. One file, bounded.

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
from wsm.shared_directory import ForeignPathError, create_ours, open_to_append, read_ours, remove_ours

#: Requests that are kept, the newest.
KEPT_REQUESTS: Final = 1000

#: Things of each kind that surfaces have remembered, the newest.
KEPT_NOTES: Final = 256

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
        self._notes: dict[str, OrderedDict[str, Any]] = {}
        if path is not None:
            self._read(path)

    @property
    def closed(self) -> dict[str, Any] | None:
        """Why the hold that was closed last is closed, and which it is; None: none is."""
        return self._closed

    def request(self, request_id: str) -> dict[str, Any] | None:
        """Return what is kept of a request."""
        found = self._requests.get(request_id)  # one look, without the lock of a write: it may block
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

    def note(self, kind: str, name: str) -> Any:
        """Return what is remembered under a name; None: nothing."""
        found = self._notes.get(kind)
        return None if found is None else found.get(name)

    def remember(self, kind: str, name: str, value: Any) -> None:
        """Remember plain values under a name; None: nothing any more. Blocks for a write."""
        with self._lock:
            if self.note(kind, name) != value:
                self._take_note(kind, name, value)
                self._append({"note": [kind, name, value]})

    def _take_note(self, kind: str, name: str, value: Any) -> None:
        notes = self._notes.setdefault(kind, OrderedDict())
        notes.pop(name, None)
        if value is not None:
            notes[name] = value
        while len(notes) > KEPT_NOTES:
            notes.popitem(last=False)

    def _take(self, request: dict[str, Any]) -> None:
        name = request["request_id"]
        self._requests[name] = request
        self._requests.move_to_end(name)
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
                elif "note" in said:
                    kind, name, value = said["note"]
                    self._take_note(str(kind), str(name), value)
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
                if size > _FILE_BYTES:
                    self._rewrite(self._path)  # with what is said now, too
                    return
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" * torn + _line(said))
            finally:
                os.close(descriptor)
        except (OSError, ForeignPathError) as error:
            self._end(error)

    def _rewrite(self, path: Path) -> None:
        """Put what all lines mean in their place, in one step: a kill leaves the old file or the new one."""
        new = path.with_name(f"{path.name}.new")
        remove_ours(new)
        kept: list[dict[str, Any]] = [{"closed": self._closed}]
        kept += [{"request": each} for each in self._requests.values()]
        for kind, notes in self._notes.items():
            kept += [{"note": [kind, name, value]} for name, value in notes.items()]
        with os.fdopen(create_ours(new, mode=None), "wb") as file:
            file.writelines(_line(each) for each in kept)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _end(self, error: Exception) -> None:
        log.logger("http").error(log.RECEIPTS_ENDED, path=str(self._path), error=str(error))
        self._path = None


def _line(said: object) -> bytes:
    return f"{json.dumps(said, default=str)}\n".encode()
