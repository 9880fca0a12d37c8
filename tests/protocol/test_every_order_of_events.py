"""Every order of events of a small group ends with one version on all ranks, and nobody stuck."""

from __future__ import annotations

import pytest
from small_world import explore, first_world

from wsm.states.words import Operation

CLEAR, UPDATE, HOT = Operation.CLEAR, Operation.UPDATE, Operation.HOT_UPDATE

CASES = [
    # ranks, steps, failures, callers that give up, commands
    (2, 1, 1, 1, (CLEAR, UPDATE)),
    (2, 2, 1, 0, (UPDATE,)),
    (2, 1, 1, 1, (UPDATE, CLEAR)),
    (2, 2, 1, 1, (HOT,)),
    (2, 1, 0, 1, (HOT, CLEAR)),
    (3, 1, 1, 0, (CLEAR,)),
    (3, 1, 1, 0, (UPDATE,)),
    (3, 2, 0, 0, (HOT,)),
    (2, 2, 1, 1, (UPDATE, CLEAR, UPDATE)),
]


@pytest.mark.parametrize(("ranks", "work", "fails", "give_ups", "commands"), CASES)
def test_every_order_of_events_ends_with_one_version_on_all_ranks(ranks, work, fails, give_ups, commands):
    states, ends = explore(first_world(ranks, work=work, fails=fails, give_ups=give_ups, commands=commands))
    assert states > 100
    assert ends
