"""The words beside the heartbeat: what a participant does now, for whoever reads them, dead or alive."""

from __future__ import annotations

import itertools
import os

import pytest

from wsm.signals.presence import (
    UNREADABLE,
    Occupant,
    Presence,
    PresenceWords,
    ProcessIdentity,
    is_stopped,
    read_occupant,
    read_presence,
    write_occupant,
)


def test_a_process_that_runs_is_not_stopped():
    assert not is_stopped(os.getpid())


def test_a_participant_says_what_it_does_and_since_when(segment):
    heartbeat = segment.layout.heartbeat[1]
    assert read_presence(segment.words, heartbeat) == Presence(0, 0, 0, 0)
    words = PresenceWords(segment.words, heartbeat)
    words.beat(10)
    words.beat(20)
    words.told(15)
    words.inside(17)
    assert read_presence(segment.words, heartbeat) == Presence(2, 20, 15, 17)
    assert read_presence(segment.words, segment.layout.heartbeat[0]) == Presence(0, 0, 0, 0)
    assert segment.words[segment.layout.occupant[1]] == 0


def test_a_record_says_exactly_what_was_written():
    words = memoryview(bytearray(32)).cast("Q")
    assert read_occupant(words, 0) is None
    for pid, present in itertools.product((1, 2, 3, 4, 2**22), (True, False)):
        occupant = Occupant(ProcessIdentity(pid, 2**60, 2**32 - 1), present)
        write_occupant(words, 0, occupant)
        assert read_occupant(words, 0) == occupant


@pytest.mark.parametrize("word", range(4))
def test_a_record_of_which_a_word_is_gone_is_somebodys_who_cannot_be_named(word):
    words = memoryview(bytearray(32)).cast("Q")
    write_occupant(words, 0, Occupant(ProcessIdentity.current(), present=True))
    words[word] = 0
    assert read_occupant(words, 0) == Occupant(UNREADABLE, present=True)
