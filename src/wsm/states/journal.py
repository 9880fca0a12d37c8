"""The bounded record of what one rank, or a controller, did: the last entries, and a sink that sees all.

Appending is cheap, so it may stand beside every transition. No clock and no file of its own: times come
with the entries, lines go to the sink. Entries are in :mod:`.entry`, their check against the tables is in
:mod:`.replay`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from wsm.states.entry import JournalEntry, read_ndjson, transition_entry
from wsm.states.errors import JournalCapacityError

__all__ = ["Journal", "JournalEntry", "read_ndjson", "transition_entry"]


class Journal:
    """The last entries in memory.

    Parameters
    ----------
    capacity : int
        How many entries are kept; the oldest ones leave.
    sink : callable or None
        Called with the line of every entry, without its line feed. What it raises reaches the caller of
        :meth:`append`; the entry is kept.

    Attributes
    ----------
    appended : int
        Entries that were ever taken in.

    Raises
    ------
    JournalCapacityError
        If `capacity` is less than 1.
    """

    def __init__(self, capacity: int = 4096, sink: Callable[[str], None] | None = None) -> None:
        if capacity < 1:
            raise JournalCapacityError(capacity=capacity)
        self._entries: deque[JournalEntry] = deque(maxlen=capacity)
        self._sink = sink
        self.appended = 0

    @property
    def dropped(self) -> int:
        """Entries that had to leave; what is left begins in the middle of things if there are any."""
        return self.appended - len(self._entries)

    def append(self, entry: JournalEntry) -> None:
        """Take an entry in."""
        self._entries.append(entry)
        self.appended += 1
        if self._sink is not None:
            self._sink(entry.to_line())

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        """Iterate over the kept entries as they are now, oldest first."""
        return iter(tuple(self._entries))

    def to_ndjson(self) -> str:
        """Return the kept entries, one JSON object per line."""
        return "".join(f"{entry.to_line()}\n" for entry in self)
