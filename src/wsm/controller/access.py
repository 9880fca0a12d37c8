"""A controller's hold on the segment of its group: shared with its commands, which may outlive it.

Counts who uses the segment and lets go of it with the last one. Knows nothing of commands.
"""

from __future__ import annotations

import threading
from pathlib import Path

from wsm.controller.group_view import GroupView
from wsm.signals.errors import SegmentClosedError
from wsm.signals.segment import Segment


class GroupAccess:
    """The segment of one group, attached. Safe for threads.

    Parameters
    ----------
    name : str
        The group.
    directory : path or None
        Where the segment lies; ``/dev/shm`` by default.
    journal_directory : path or None
        Where ``controller.ndjson`` is appended to.

    Raises
    ------
    wsm.signals.errors.SegmentMissingError
        If there is no such group. Other errors of :meth:`wsm.signals.segment.Segment.attach` likewise.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: str | Path | None = None,
        journal_directory: str | Path | None = None,
    ) -> None:
        self.directory = directory
        self._segment = Segment.attach(name, directory=directory)
        self.group = GroupView(self._segment, journal_directory)
        self.role = self.group.role
        self._counting = threading.Lock()
        self._uses = 1
        self._closed = False

    def begin_use(self) -> None:
        """Keep the segment until :meth:`end_use`.

        Raises
        ------
        SegmentClosedError
            If the controller was closed.
        """
        with self._counting:
            if self._closed:
                raise SegmentClosedError(path=str(self._segment.path))
            self._uses += 1

    def end_use(self) -> None:
        """Let go of the segment with its last user: the controller, or a command that outlives it."""
        with self._counting:
            self._uses -= 1
            if self._uses == 0:
                self.group.close()
                self._segment.close()

    def close(self) -> None:
        """End the controller's own use. Idempotent."""
        with self._counting:
            was_closed, self._closed = self._closed, True
        if not was_closed:
            self.end_use()
