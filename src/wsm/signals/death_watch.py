"""Tells at once when a process that stands for a participant dies, without looking again and again.

A thread sleeps on the pidfds of all participants. Where there is no pidfd (another pid namespace, an old
kernel), nobody is told: whoever cares looks at :class:`wsm.signals.liveness.Liveness` now and then anyway.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence

from wsm.shortage import shortage_of
from wsm.signals.identity import ProcessIdentity
from wsm.signals.liveness import Liveness

#: Seconds after which a turn is repeated that a shortage has cut short.
_AGAIN_S = 0.05


class DeathWatch:
    """A thread that sleeps until somebody dies.

    Parameters
    ----------
    liveness : Liveness
        Of the group.
    participants : sequence of int
        Who is watched.
    on_death : callable
        Called in the thread after deaths.
    on_turn : callable or None
        Called in the thread after every wake-up; returns the seconds after which it wants to be called again
        in any case, or None.

    Raises
    ------
    OSError, RuntimeError
        If no descriptor, or no thread, is left for it.
    """

    def __init__(
        self,
        liveness: Liveness,
        participants: Sequence[int],
        on_death: Callable[[], object],
        on_turn: Callable[[], float | None] | None = None,
    ) -> None:
        self._liveness = liveness
        self._participants = participants
        self._on_death = on_death
        self._on_turn = on_turn
        self._changing = threading.Lock()
        self._known: dict[int, ProcessIdentity | None] = {}
        self._new: list[int] = []
        self._closing = False
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._watch, name="wsm-death-watch", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._bell)
            raise

    def refresh(self) -> None:
        """Watch those who stand there now, and have a turn. Cheap while nobody was replaced."""
        with self._changing:
            found = {participant: self._liveness.identity(participant) for participant in self._participants}
            changed = [who for who, identity in found.items() if identity != self._known.get(who)]
            self._known = found
            for participant in changed:
                self._take_up(participant)
            if (self._new or self._on_turn is not None) and not self._closing:
                os.eventfd_write(self._bell, 1)

    def _take_up(self, participant: int) -> None:
        try:
            descriptor = self._liveness.fd(participant)
            if descriptor is not None:
                self._new.append(os.dup(descriptor))
        except OSError:
            del self._known[participant]  # no descriptor is left: the next refresh tries again

    def close(self) -> None:
        """End the thread. Does nothing the second time."""
        with self._changing:
            if self._closing:
                return
            self._closing = True
            os.eventfd_write(self._bell, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        poller, watched = select.poll(), set[int]()
        poller.register(self._bell, select.POLLIN)
        timeout_s: float | None = None
        untold = False
        while not self._closing:
            timeout_ms = None if timeout_s is None else timeout_s * 1e3
            ready = [descriptor for descriptor, _ in poller.poll(timeout_ms)]
            dead = watched.intersection(ready)
            for descriptor in dead:
                poller.unregister(descriptor)
                os.close(descriptor)
            watched -= dead
            if self._bell in ready:
                os.eventfd_read(self._bell)
                for descriptor in self._taken():
                    poller.register(descriptor, select.POLLIN)
                    watched.add(descriptor)
            if self._closing:
                break
            untold = untold or bool(dead)
            try:
                if untold:
                    self._on_death()
                untold = False
                timeout_s = None if self._on_turn is None else self._on_turn()
            except (MemoryError, OSError, RuntimeError) as error:
                if shortage_of(error) is None:
                    raise
                timeout_s = _AGAIN_S  # who watches must not be gone when the shortage is over
        for descriptor in (*watched, *self._taken(), self._bell):
            os.close(descriptor)

    def _taken(self) -> list[int]:
        with self._changing:
            new, self._new = self._new, []
            return new
