"""What outlives a server: ends of requests, and what is remembered. One sqlite file of a group's servers.

The file is memory, and no authority: each server has all of it in its own memory, too, and goes on without a
file that is damaged, full, foreign or hangs. One thread owns the connection. A transaction of it first reads
what other servers have written, then writes what is said here, so that two servers that begin one request at
once agree on which of them runs it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from wsm import log
from wsm.metrics.history import ServerCounts
from wsm.receipt import Receipt
from wsm.shared_directory import ForeignPathError, open_to_append

#: Requests that are kept, the newest, and the bytes that they may take.
KEPT_REQUESTS: Final = 1000
KEPT_BYTES = 8 << 20

#: Things of each kind that surfaces have remembered, the newest.
KEPT_NOTES: Final = 256

#: Bytes of the file at most.
_FILE_BYTES: Final = 16 << 20

#: Seconds that a command waits for the file; while it hangs, none does. And those that a lock is waited for.
WAIT_S = 1.0
_LOCKED_S: Final = 30.0

#: The kind of rows that are requests; all other kinds are of notes.
_REQUEST: Final = "request"

_VERSION: Final = 1
_TABLE: Final = (
    "CREATE TABLE kept (kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT, change INTEGER NOT NULL, "
    "PRIMARY KEY (kind, name))"
)


#: What is kept under a kind and a name, as JSON; None: nothing any more.
_KeptRow: TypeAlias = tuple[str, str, str | None]


class KeptRequests:
    """The requests of one group and their ends. Safe for threads.

    Parameters
    ----------
    path : path or None
        Where they are kept; None: in memory alone.
    counts : ServerCounts or None
        Counts the faults of the file.

    Attributes
    ----------
    fault : str
        Why the file is not used, or what was wrong with the one before it; empty: nothing.
    """

    def __init__(self, path: Path | None, counts: ServerCounts | None = None) -> None:
        self.fault = ""
        self._counts = counts or ServerCounts()
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], str] = {}  # the newest last
        self._file = None if path is None else _RequestFile(path, self)
        self.catch_up()

    def catch_up(self) -> None:
        """Take in what other servers of the group have kept since. Blocks for a second at most."""
        self._say(None)

    def request(self, request_id: str) -> dict[str, Any] | None:
        """Return what is kept of a request."""
        found: dict[str, Any] | None = self.note(_REQUEST, request_id)
        return found

    def claim(
        self, request: dict[str, Any], is_free: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any] | None:
        """Keep a request that is to begin; return what stands under its name instead where that is not free.

        Of several servers that claim one name at once, one does. Blocks for a second at most.
        """
        standing: list[dict[str, Any]] = []

        def claimed() -> list[_KeptRow]:
            known = self.request(request["request_id"])
            if known is not None and not is_free(known):
                standing.append(known)
                return []
            return [_row(_REQUEST, request["request_id"], request)]

        self._say(claimed)
        return standing[0] if standing else None

    def keep(self, request: dict[str, Any]) -> None:
        """Keep what a request is now, in the place of what it was. Blocks for a second at most."""
        self._say(lambda: [_row(_REQUEST, request["request_id"], request)])

    def note(self, kind: str, name: str) -> Any:
        """Return what is remembered under a name; None: nothing."""
        with suppress(KeyError, ValueError, TypeError):  # a damaged file may say anything
            return json.loads(self._rows[kind, name])
        return None

    def remember(self, kind: str, name: str, value: Any) -> None:
        """Remember plain values under a name; None: nothing any more. Blocks for a second at most."""
        if self.note(kind, name) != value:
            self._say(lambda: [_row(kind, name, value)])

    def take(self, rows: Iterable[_KeptRow]) -> None:
        """Take in what is said of names, the newest last; a request that its readers cannot read is none."""
        with self._lock:
            for kind, name, value in rows:
                self._rows.pop((kind, name), None)
                if value is not None and (kind != _REQUEST or _is_request(value)):
                    self._rows[kind, name] = value
            seen: Counter[str] = Counter()
            kept_bytes = 0
            for (kind, name), value in reversed(tuple(self._rows.items())):
                seen[kind] += 1
                most = KEPT_REQUESTS if kind == _REQUEST else KEPT_NOTES
                kept_bytes += len(value) if kind == _REQUEST else 0
                too_long = kind == _REQUEST and kept_bytes > KEPT_BYTES and seen[kind] > 1
                if seen[kind] > most or too_long:
                    del self._rows[kind, name]

    def rows(self) -> list[_KeptRow]:
        """Return all that is kept, the newest last."""
        with self._lock:
            return [(kind, name, value) for (kind, name), value in self._rows.items()]

    def found_fault(self, path: Path, error: str) -> None:
        """Say once that the file was found damaged or emptied, or cannot be used."""
        self.fault = f"the server's file of requests, {path}: {error}"
        self._counts.file_faults += 1
        log.logger("http").error("receipts.ended", path=str(path), error=error)

    def close(self) -> None:
        """End the thread that writes, once it has written. Does not wait."""
        if self._file is not None:
            self._file.asked.put(None)

    def _say(self, say: Callable[[], Sequence[_KeptRow]] | None) -> None:
        saying = _Saying(self, say)
        if self._file is not None:
            self._file.exchange(saying)
        saying.rows()


class _Saying:
    """What a caller says, found out once: by the thread of the file, or by the caller where that hangs."""

    def __init__(self, kept: KeptRequests, say: Callable[[], Sequence[_KeptRow]] | None) -> None:
        self._kept = kept
        self.say = say
        self._lock = threading.Lock()
        self._rows: Sequence[_KeptRow] | None = None
        self.done = threading.Event()

    def rows(self) -> Sequence[_KeptRow]:
        with self._lock:
            if self._rows is None:
                self._rows = [] if self.say is None else self.say()
                self._kept.take(self._rows)
            return self._rows


class _RequestFile:
    """The file of several servers, read and written by a thread of its own."""

    def __init__(self, path: Path, kept: KeptRequests) -> None:
        self._path = path
        self._kept = kept
        self.asked: SimpleQueue[_Saying | None] = SimpleQueue()
        self._hangs = False
        self._failed = ""
        self._connection: sqlite3.Connection | None = None
        self._inode = self._seen = 0  # of the file that is open, and the last change that was read of it
        self._unwritten: deque[_KeptRow] = deque(maxlen=KEPT_REQUESTS)
        threading.Thread(target=self._run, name="wsm-http-kept", daemon=True).start()

    def exchange(self, saying: _Saying) -> None:
        """Have it written, and what others say read; waits `WAIT_S` at most, and not while the file hangs."""
        self.asked.put(saying)
        if not self._hangs and not saying.done.wait(WAIT_S):
            self._hangs = True
            self._say_once(f"no answer within {WAIT_S:g} s: commands go on without it")

    def _run(self) -> None:
        while (saying := self.asked.get()) is not None:
            try:
                self._exchange(saying)
                if self._failed:
                    self._failed = self._kept.fault = ""
            except (OSError, ForeignPathError, sqlite3.Error) as error:
                self._unwritten.extend(saying.rows())
                self._close()
                if type(error) is sqlite3.DatabaseError and self._set_aside():
                    self._kept.found_fault(self._path, f"{error}; it is set aside, and begun anew")
                else:
                    self._say_once(f"{error}; commands go on without it")
            saying.done.set()
            self._hangs = self._hangs and not self.asked.empty()
        self._close()

    def _set_aside(self) -> bool:
        with suppress(OSError):
            self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
            return True
        return False

    def _exchange(self, saying: _Saying) -> None:
        if not (self._connection or self._unwritten or saying.say or self._path.exists()):
            return  # nothing is to be kept yet
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._prepare(connection)
            news = "SELECT kind, name, value, change FROM kept WHERE change > ? ORDER BY change"
            found = connection.execute(news, (self._seen,)).fetchall()
            known = {(kind, name) for kind, name, *_ in found}
            lacking = [row for row in self._kept.rows() if self._seen == 0 and row[:2] not in known]
            self._kept.take(row[:3] for row in found)
            self._kept.take(self._unwritten)
            said = [*lacking, *self._unwritten, *saying.rows()]
            last = max([self._seen, *(row[3] for row in found)])
            connection.executemany(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)",
                [(*row, change) for change, row in enumerate(said, last + 1)],
            )
            if said:
                self._trim(connection)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
        self._seen = last + len(said)
        self._unwritten.clear()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the table where there is none yet."""
        [(version,)] = connection.execute("PRAGMA user_version")
        if version not in (0, _VERSION):
            raise sqlite3.OperationalError(f"it is of version {version}, and this wsm reads {_VERSION}")
        if version == 0:
            connection.execute(_TABLE)
            if self._seen:
                self._kept.found_fault(self._path, "it was emptied; this server writes what it knows again")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            self._seen = 0

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Delete what is too old to be kept; what is only forgotten is told to others for as long."""
        kept = {row[:2] for row in self._kept.rows()}
        rows = connection.execute(
            "SELECT kind, name, value IS NULL FROM kept ORDER BY change DESC"
        ).fetchall()
        gone = [
            (kind, name)
            for place, (kind, name, is_forgotten) in enumerate(rows)
            if (kind, name) not in kept and (not is_forgotten or place >= KEPT_REQUESTS)
        ]
        connection.executemany("DELETE FROM kept WHERE kind = ? AND name = ?", gone)

    def _open(self) -> sqlite3.Connection:
        """Open the file, and another one that lies there by now, of which nothing is read yet."""
        if self._connection is not None:
            with suppress(OSError):
                if self._path.stat().st_ino == self._inode:
                    return self._connection
            self._close()
        descriptor = open_to_append(self._path)  # refuses what is not ours
        self._inode = os.fstat(descriptor).st_ino
        os.close(descriptor)
        self._seen = 0
        self._connection = sqlite3.connect(self._path, timeout=_LOCKED_S, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = FULL")
        [(page_bytes,)] = self._connection.execute("PRAGMA page_size")
        self._connection.execute(f"PRAGMA max_page_count = {_FILE_BYTES // page_bytes}")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _say_once(self, error: str) -> None:
        if error != self._failed:
            self._failed = error
            self._kept.found_fault(self._path, error)


def _is_request(value: str) -> bool:
    """Whether this is all that a request says of itself, as every reader of it expects."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        said = json.loads(value)
        if said["state"] == "succeeded":
            Receipt.from_mapping(said["receipt"])
        texts = [said[name] for name in ("request_id", "operation", "surface", "run_id", "state")]
        return isinstance(said["asked"], dict) and all(isinstance(each, str) for each in texts)
    return False


def _row(kind: str, name: str, value: Any) -> _KeptRow:
    return kind, name, None if value is None else json.dumps(value, default=str)
