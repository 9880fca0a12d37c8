"""One replica's own view of its fleet: the newest target, read by the server itself.

The target is read in a thread, so that a store that hangs delays no request for text. A store that cannot be
read leaves what was read last, and since when is known; without any target nothing is proved.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from wsm import log
from wsm.errors import RefusedError, WsmError
from wsm.fleet.rolling import other_content
from wsm.http.commands import Commands, Origin
from wsm.http.native.schema import FleetAnswer
from wsm.states.epochs import Backoff
from wsm.states.fleet import FleetTarget, admits, generation_of, replica_state, takes
from wsm.strategies.trainer.targets import address, newest_target

#: Seconds between two reads, and that one may delay who asks for it.
_READ_S: Final = 0.25
_WAIT_S: Final = 2.0
#: Behind loads that failed, or brought other content than the target's.
_AGAIN: Final = Backoff(first_s=1.0, longest_s=60.0)


class FleetMember:
    """Reads the target of a store until it is closed. Safe for threads.

    Parameters
    ----------
    store : path
        Where the targets lie.
    detached : bool
        Whether the group may be brought to what is not the fleet's; text waits for the fleet even then.

    Attributes
    ----------
    target : FleetTarget or None
        As it was read last; None: there is none, or it could not be read yet.
    unread_since : float or None
        Since when the store cannot be read, in seconds of the epoch; None: it can be.
    """

    def __init__(self, store: Path, *, detached: bool = False) -> None:
        self._store, self._detached = store, detached
        self._changed = threading.Condition()
        self._asked = self._ended = False
        self._begun = self._done = 0
        self.target: FleetTarget | None = None
        self.unread_since: float | None = None
        threading.Thread(target=self._read, name="wsm-fleet-target", daemon=True).start()

    def look(self) -> FleetTarget | None:
        """Read the target now, and return it; the one before where that takes too long or fails. Blocks."""
        with self._changed:
            wanted, self._asked = self._begun + 1, True  # a read that is under way may be too old
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._done >= wanted, _WAIT_S):
                self.unread_since = self.unread_since or time.time()
        return self.target

    def require_admitted(self, group: str, digest: str | None) -> None:
        """Refuse text where a group holds what the target that was read last does not allow.

        Raises
        ------
        RefusedError
            Code ``fleet-stale``.
        """
        target = self.target
        if not admits(digest, target):
            number = _number(target)
            by = "its fleet, which has no target yet," if target is None else f"target {number} of its fleet"
            todo = "ask another replica, and bring this one to the target: wsm fleet update"
            message = f"{group} holds digest {digest}, which {by} does not allow; {todo}"
            said: dict[str, Any] = {"group": group, "digest": digest, "generation": number}
            raise RefusedError(message, code="fleet-stale", **said)

    def require_own(self, label: str | None, digest: str | None) -> None:
        """Refuse an update to what the target, read now, does not allow, unless it is detached. Blocks.

        `digest` None: it is not known yet.

        Raises
        ------
        RefusedError
            Code ``not-the-fleets``.
        """
        target = None if self._detached else self.look()
        if not (self._detached or takes(label, digest, target)):
            fleet, number = address(self._store), _number(target)
            by = f"target {number} of the fleet at {fleet}"
            by = by if target else f"the fleet at {fleet}, which has no target yet,"
            what = "what was asked for" if label is None else f"version {label}"
            what += "" if digest is None else f" with digest {digest}"
            todo = "bring the whole fleet to it by wsm fleet update, or abort what is prepared here"
            said: dict[str, Any] = {"label": label, "digest": digest, "generation": number, "fleet": fleet}
            message = f"{what} is not what {by} allows, and was not committed; {todo}"
            raise RefusedError(message, code="not-the-fleets", **said)

    def standing(self, digest: str | None, *, serving: bool, step: str | None = None) -> FleetAnswer:
        """Return what a group that holds this counts as, by the target as it is now. Blocks.

        `step`: the request id under which it stands prepared.
        """
        target = self.look()
        prepared = target is not None and generation_of(step) == target.generation
        state = replica_state(digest, serving=serving, prepared=prepared, target=target)
        return FleetAnswer(state, admits(digest, target), _number(target), self.unread_since)

    def follow(self, commands: Commands) -> None:
        """Load the target wherever what the group holds is not allowed, from now on, in a thread."""

        def follows() -> None:
            failed, failures = None, 0
            while not self._wait(lambda: self._ended, _READ_S):
                target = self.target
                try:
                    if target is not None and not admits(commands.held_digest(), target):
                        _bring(commands, target)
                except (WsmError, OSError, RuntimeError) as error:  # also of a group that ends
                    failed, failures = target, failures + 1 if target == failed else 1
                    log.logger("http").warning(log.REQUEST_FAILED, operation="follow", error=str(error))
                    self._wait(partial(self._is_news, target), _AGAIN.after(failures))

        threading.Thread(target=follows, name="wsm-fleet-follow", daemon=True).start()

    def close(self) -> None:
        """Read no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _is_news(self, target: FleetTarget | None) -> bool:
        return self._ended or self.target != target

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _read(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._ended, _READ_S)
                if self._ended:
                    return
                self._asked = False
                self._begun += 1
                number = self._begun
            try:
                found, is_read = newest_target(self._store, self.target), True
            except (WsmError, OSError):
                is_read = False
            with self._changed:
                if is_read:
                    self.target = found
                self.unread_since = None if is_read else self.unread_since or time.time()
                self._done = number
                self._changed.notify_all()


def _number(target: FleetTarget | None) -> int | None:
    return None if target is None else target.generation


def _bring(commands: Commands, target: FleetTarget) -> None:
    """Load what a target names; raises where its label means other content than the target allows."""
    asyncio.run(commands.update(Origin("fleet"), target.content.label, force=True))
    found = commands.held_digest()
    if not admits(found, target):
        raise other_content(found=found, wanted=target.content.digest)
