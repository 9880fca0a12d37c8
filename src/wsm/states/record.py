"""What came of one event: the record that the journal keeps and the worker logs.

A plain tuple of names and numbers, because one is made for every transition of every rank and most of
them end as JSON. It knows no journal and no machine.
"""

from __future__ import annotations

from typing import NamedTuple


class TransitionRecord(NamedTuple):
    """One transition that happened.

    Parameters
    ----------
    machine : str
        ``weights`` or ``kv``: a value of :class:`wsm.states.chart.Region`.
    source, dest : str
        Names of states; the same where the event was taken in without a change.
    event : str
        Value of the event.
    guard : str or None
        Value of the guard that let it through.
    at_ns : int
        Monotonic clock of the host, as the caller read it.
    epoch, sequence : int
        The command that it belongs to.
    cause : str
        Why, for people.
    kv_kept : bool
        Whether the KV policy keeps the old weights' blocks; tells something for ``update`` of weights only.
    """

    machine: str
    source: str
    event: str
    dest: str
    guard: str | None
    at_ns: int
    epoch: int
    sequence: int
    cause: str
    kv_kept: bool = True
