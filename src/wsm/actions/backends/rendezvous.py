"""How the members of a communicator find the store of its next creation.

Every creation has a store of its own, on a port of its own: one member opens it first and announces
it here, the others look it up. The announcement is a file in a directory that the engine hands in, so
no central server is needed. Nothing here knows paddle, sockets or what a store is for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from wsm.actions.backends import errors
from wsm.own_descriptor import OwnDescriptor
from wsm.shared_directory import open_or_create_ours, trusted_in

#: First group id that is handed out; paddle numbers its own groups from 0.
FIRST_GROUP_ID = 10_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_ENTRY_BYTES = 4096
_FIRST_WAIT_S = 0.0002
_LONGEST_WAIT_S = 0.005


@dataclass(frozen=True)
class Endpoint:
    """Where a store listens, and the group id that its communicator gets.

    Parameters
    ----------
    host : str
        Address that all members reach.
    port : int
        1 to 65535.
    group_id : int
        Used by no other communicator of the run: paddle takes an id once per process.
    """

    host: str
    port: int
    group_id: int


class Rendezvous(Protocol):
    """A place where one member announces an endpoint and the others find it."""

    def next_group_id(self) -> int:
        """Return a group id that was never handed out in this run."""
        ...

    def announce(self, incarnation: str, endpoint: Endpoint) -> None:
        """Make `endpoint` known under a name that is not in use."""
        ...

    def find(
        self, incarnation: str, *, leader: int, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Endpoint:
        """Wait for the endpoint that rank `leader` announces; ``rendezvous-timeout`` after `timeout_s`."""
        ...

    def withdraw(self, incarnation: str) -> None:
        """Forget an announcement. Idempotent."""
        ...


class FileRendezvous:
    """A rendezvous of processes that share a directory.

    Parameters
    ----------
    directory : path
        Private to one run of one group; created with mode 0700 if missing.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def next_group_id(self) -> int:
        """Count one on, under a lock on the counter's file; survives the death of any process."""
        path = self._directory / "group_ids"
        counter = OwnDescriptor(lambda: open_or_create_ours(path, also=trusted_in(path.parent)))
        try:
            counter.lock()
            taken = os.pread(counter.number, 32, 0)
            group_id = int(taken) + 1 if taken else FIRST_GROUP_ID
            os.pwrite(counter.number, b"%d" % group_id, 0)
        finally:
            counter.close()
        return group_id

    def announce(self, incarnation: str, endpoint: Endpoint) -> None:
        """Publish whole or not at all.

        Raises
        ------
        BadInputError (``rendezvous``)
            If the name cannot be a file name, or something is announced under it already.
        """
        path = self._path(incarnation)
        draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
        draft.write_text(json.dumps(asdict(endpoint)), encoding="ascii")
        try:
            os.link(draft, path)
        except FileExistsError:
            raise errors.rendezvous_entry(
                incarnation=incarnation,
                found="it is announced already",
                fix="every creation needs a name of its own; restart the group",
            ) from None
        finally:
            draft.unlink()

    def find(
        self, incarnation: str, *, leader: int, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Endpoint:
        """Look until it is there, in steps that grow from 0.2 ms to 5 ms.

        Raises
        ------
        GroupError (``rendezvous-timeout``)
            If nothing was announced within `timeout_s` seconds, or `interrupted` said so earlier.
        BadInputError (``rendezvous``)
            If what was announced is no endpoint.
        """
        path = self._path(incarnation)
        began = time.monotonic()
        pause = _FIRST_WAIT_S
        while True:
            with contextlib.suppress(FileNotFoundError):
                return self._read(path, incarnation)
            waited = time.monotonic() - began
            if waited >= timeout_s or interrupted():
                raise errors.rendezvous_timeout(incarnation=incarnation, leader=leader, seconds=waited)
            # A file that appears wakes no process without inotify; this directory may be on a file server.
            time.sleep(min(pause, timeout_s - waited))
            pause = min(pause * 2, _LONGEST_WAIT_S)

    def withdraw(self, incarnation: str) -> None:
        """Remove the announcement. Idempotent."""
        self._path(incarnation).unlink(missing_ok=True)

    def _path(self, incarnation: str) -> Path:
        if not _NAME.fullmatch(incarnation):
            raise errors.rendezvous_entry(
                incarnation=incarnation,
                found="the name cannot be a file name",
                fix="use up to 128 letters, digits, dots, dashes and underscores",
            )
        return self._directory / f"{incarnation}.endpoint"

    def _read(self, path: Path, incarnation: str) -> Endpoint:
        with path.open("rb") as entry:
            data = entry.read(_MAX_ENTRY_BYTES + 1)
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = None
        match fields:
            case {"host": str(host), "port": int(port), "group_id": int(group_id)} if 0 < port < 65536:
                return Endpoint(host, port, group_id)
        raise errors.rendezvous_entry(
            incarnation=incarnation,
            found=f"{path} is not an endpoint",
            fix="remove that file",
        )
