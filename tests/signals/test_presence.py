"""The words beside the heartbeat: what a participant does now, for whoever reads them, dead or alive."""

from __future__ import annotations

import pytest

from wsm.signals.presence import Doing, Presence, PresenceWords, read_presence


@pytest.mark.parametrize(
    "doing", [Doing(), Doing(0), Doing(3), Doing(0, 0), Doing(5, 17), Doing(253, 253), Doing(None, 4)]
)
def test_what_is_packed_is_read_back(doing):
    assert Doing.unpack(doing.pack()) == doing


def test_places_that_do_not_fit_are_left_out_and_unknown_bits_are_ignored():
    assert Doing.unpack(Doing(254, 254).pack()) == Doing()
    assert Doing.unpack(2**64 - 1) == Doing(254, 254)


def test_a_participant_says_what_it_does_and_since_when(segment):
    heartbeat = segment.layout.heartbeat[1]
    assert read_presence(segment.words, heartbeat) == Presence(0, 0, 0, Doing(), 0)
    words = PresenceWords(segment.words, heartbeat)
    words.beat(10)
    words.beat(20)
    words.told(15)
    words.does(Doing(2, 7), 17)
    assert read_presence(segment.words, heartbeat) == Presence(2, 20, 15, Doing(2, 7), 17)
    assert read_presence(segment.words, segment.layout.heartbeat[0]) == Presence(0, 0, 0, Doing(), 0)
    assert segment.words[segment.layout.occupant[1]] == 0
