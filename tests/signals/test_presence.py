"""The words beside the heartbeat: what a participant does now, for whoever reads them, dead or alive."""

from __future__ import annotations

import os

from wsm.signals.presence import Presence, PresenceWords, is_stopped, read_presence


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
