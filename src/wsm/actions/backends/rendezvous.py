"""How the members of a communicator find the store of its next creation.

Every creation has a store of its own, on a port of its own: one member opens it first and announces it in a
file, the others look it up there. So no central server is needed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from wsm.errors import BadInputError, GroupError
from wsm.own_descriptor import OwnDescriptor
from wsm.shared_directory import open_or_create_ours, trusted_in
from wsm.typed import resolved

#: First group id that is handed out; paddle numbers its own groups from 0.
FIRST_GROUP_ID = 10_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FIRST_WAIT_S = 0.0002
_LONGEST_WAIT_S = 0.005


class Endpoint(msgspec.Struct, frozen=True):
    """The port of a store, and the group id, which paddle takes once per process: no other has it."""

    port: Annotated[int, msgspec.Meta(gt=0, lt=65536)]
    group_id: int


class FileRendezvous:
    """Where one member announces an endpoint, and the others find it.

    All of them share `directory`, which is private to one run of one group (mode 0700).
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def next_group_id(self) -> int:
        """Return one that was never handed out in this run, whichever process dies: a locked file counts."""
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
        """Make `endpoint` known under a name that is not in use, whole or not at all."""
        path = self._path(incarnation)
        draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
        draft.write_bytes(msgspec.json.encode(endpoint))
        try:
            os.link(draft, path)
        except FileExistsError:
            raise _unfit_entry(
                incarnation=incarnation,
                found="it is announced already",
                fix="every creation needs a name of its own; restart the group",
            ) from None
        finally:
            draft.unlink()

    def find(
        self, incarnation: str, *, leader: int, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Endpoint:
        """Wait for what rank `leader` announces, ``rendezvous-timeout`` after `timeout_s`.

        Looks in steps that grow from 0.2 ms to 5 ms.
        """
        path = self._path(incarnation)
        began = time.monotonic()
        pause = _FIRST_WAIT_S
        while True:
            try:
                return msgspec.json.decode(path.read_bytes(), type=resolved(Endpoint))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = f"{path} is not an endpoint"
                raise _unfit_entry(incarnation=incarnation, found=found, fix="remove that file") from None
            except FileNotFoundError:
                pass
            waited = time.monotonic() - began
            if waited >= timeout_s or interrupted():
                raise GroupError(
                    f"rank {leader} announced no store for {incarnation!r} within {waited:.1f} s; "
                    "see whether it lives and what it is doing",
                    code="rendezvous-timeout",
                    incarnation=incarnation,
                    leader=leader,
                    seconds=waited,
                )
            # A file that appears wakes no process without inotify; this directory may be on a file server.
            time.sleep(min(pause, timeout_s - waited))
            pause = min(pause * 2, _LONGEST_WAIT_S)

    def withdraw(self, incarnation: str) -> None:
        """Remove the announcement. Idempotent."""
        self._path(incarnation).unlink(missing_ok=True)

    def _path(self, incarnation: str) -> Path:
        if not _NAME.fullmatch(incarnation):
            raise _unfit_entry(
                incarnation=incarnation,
                found="the name cannot be a file name",
                fix="use up to 128 letters, digits, dots, dashes and underscores",
            )
        return self._directory / f"{incarnation}.endpoint"


def _unfit_entry(*, incarnation: str, found: str, fix: str) -> BadInputError:
    message = f"rendezvous {incarnation!r}: {found}; {fix}"
    return BadInputError(message, code="rendezvous", incarnation=incarnation, found=found, fix=fix)
