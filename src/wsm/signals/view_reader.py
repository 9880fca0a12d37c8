"""Reads the words of a group into a view: every word once, in one order. Knows no states.

A word that is what it was the last time is not unpacked again.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from wsm.signals.segment import Segment
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, StatusWord, StepWord


class WordsRead(NamedTuple):
    """One reading.

    Parameters
    ----------
    view : View
        What was read.
    command : int
        The command word as it stands in memory, for a later wait for a change.
    steps, statuses : tuple of int
        The step words and the status words, likewise.
    """

    view: View
    command: int
    steps: tuple[int, ...]
    statuses: tuple[int, ...]


class ViewReader:
    """Reads one segment. Safe for threads.

    Parameters
    ----------
    segment : Segment
        Attached; must stay open.
    """

    def __init__(self, segment: Segment) -> None:
        layout = segment.layout
        steps, statuses = layout.step[: segment.world_size], layout.status
        self._segment = segment
        self._first_status = 1 + len(steps)
        self._load: Callable[[memoryview[int]], tuple[int, ...]]
        self._load = itemgetter(*[layout.command, *steps, *statuses, layout.committed])
        self._unpack = (
            CommandWord.unpack,
            *(StepWord.unpack for _ in steps),
            *(StatusWord.unpack for _ in statuses),
            CommittedWord.unpack,
        )
        self._last: tuple[tuple[int, ...], tuple[Any, ...], WordsRead] | None = None

    def read(self) -> WordsRead:
        """Read every word once, one after the other.

        Raises
        ------
        wsm.states.errors.WordFormatError
            If a word is damaged.
        """
        raw = self._load(self._segment.words)
        last = self._last
        if last is not None and last[0] == raw:
            return last[2]
        words: tuple[Any, ...]
        if last is None:
            words = tuple(unpack(word) for unpack, word in zip(self._unpack, raw, strict=True))
        else:
            known = zip(self._unpack, raw, last[0], last[1], strict=True)
            words = tuple([same if word == before else unpack(word) for unpack, word, before, same in known])
        middle = self._first_status
        command, committed = words[0], words[-1]
        view = View(command, words[1:middle], words[middle:-1], committed)
        found = WordsRead(view, raw[0], raw[1:middle], raw[middle:-1])
        self._last = raw, words, found
        return found
