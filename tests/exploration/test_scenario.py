"""Scenario files and traces: readable, refused where they are none, and gone again word by word."""

from __future__ import annotations

import pytest
from seeded_faults import FAULTS, hunt, seeded

from explorer import dialogue
from explorer.errors import ScenarioError

NO_DUMMY = next(fault for fault in FAULTS if fault.name == "no_dummy")

DIALOGUE = """\
# wsm scenario: `python -m explorer --replay FILE` goes this way again.
scope: operations=clear starts=serving
start: 1
broken: rank 0 waits while parking for ever

controller: opens CLEAR 1
    command: epoch 1, sequence 1, CLEAR
rank 0: begins
    status: DRAINING (epoch 1, sequence 1)
rank 1: begins
    status: DRAINING (epoch 1, sequence 1)
rank 0: has drained
    step word: PARKED 0 (epoch 1, for sequence 1)
    status: PARKING (epoch 1, sequence 1)
rank 1: has work left
    step word: RUNNING 1 (epoch 1, done 0)

at the end:
    command: epoch 1, sequence 1, CLEAR
    committed: version 1 (sequence 0)
    rank 0: version 1
    rank 1: version 1
"""


def test_a_violation_is_told_as_a_dialogue() -> None:
    found = hunt(NO_DUMMY)
    assert found.violation is not None
    assert dialogue.as_text(found.violation, found.scope) == DIALOGUE


def test_what_the_words_say_need_not_be_written() -> None:
    margin = "\n".join(line for line in DIALOGUE.splitlines() if not line.startswith(" "))
    told = dialogue.read(margin)
    with seeded(NO_DUMMY):
        assert dialogue.as_text(dialogue.replay(told), told.scope, told.remarks) == DIALOGUE


def test_a_dialogue_is_gone_again_on_the_protocol_of_today() -> None:
    told = dialogue.read(DIALOGUE)
    assert dialogue.replay(told).broken == ""
    with seeded(NO_DUMMY):
        assert dialogue.replay(told).broken == told.broken


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (DIALOGUE.replace("rank 0: begins", "rank 0: begins to sing"), 8),
        (DIALOGUE.replace("rank 0: begins", "rank 7: begins"), 8),
        (DIALOGUE.replace("rank 0: begins", "rank 0 begins"), 8),
        (DIALOGUE.replace("start: 1", "start: 9"), 1),
        (DIALOGUE.replace("start: 1\n", ""), 1),
        (DIALOGUE.replace("scope: operations=clear", "scope: operations=sing"), 1),
        ("", 1),
    ],
)
def test_what_is_no_scenario_of_this_build_is_refused_with_its_line(wrong: str, line: int) -> None:
    with pytest.raises(ScenarioError) as refused:
        dialogue.replay(dialogue.read(wrong))
    assert refused.value.line == line
