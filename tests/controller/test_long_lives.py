"""A group that was given millions of commands: its numbers are large, and end with a refusal."""

from __future__ import annotations

import pytest
from recovered_group import recovered

from tests.raising import raising
from wsm import Outcome, Tag
from wsm.errors import RefusedError
from wsm.states.words import FEW_SEQUENCES, KEPT_SEQUENCES, MAX_SEQUENCE, CommandWord, Operation
from wsm.status import explain, read_facts, status_text

pytestmark = pytest.mark.processes


@pytest.fixture
def aged(make_group):
    """`aged(sequence)`: a group of two ranks that serves, whose next command has the number behind that."""
    contexts = []

    def make(sequence):
        group = make_group(load=0.3)
        contexts.append(recovered(group))
        kept = contexts[-1].__enter__()
        words, command = kept.segment.words, kept.segment.layout.command
        words[command] = CommandWord(1, sequence, Operation.NONE).pack()
        group.boot()
        return kept

    yield make
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [2**16 - 3, MAX_SEQUENCE // 2])
def test_commands_recoveries_and_journals_go_on_over_large_numbers(aged, sequence):
    kept = aged(sequence)
    group, controller = kept.group, kept.group.controllers[0]
    for version in (2, 3):
        group.publish(version)
        controller.update(version, hot=version == 3)
        group.await_steps(5)
    controller.clear(tags={Tag.KV_CACHE})
    assert controller.update(tags={Tag.KV_CACHE}).sequence == sequence + 5
    assert controller.update(3).outcome is Outcome.ALREADY_SERVED
    kept.kill(1)
    receipt = kept.recover(1)
    assert (receipt.version, receipt.epoch, receipt.sequence) == ("3", 2, sequence + 6)
    group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2, 3])
    group.assert_journals_are_possible()


@pytest.mark.slow
def test_the_last_commands_are_announced_then_refused_and_what_was_served_is_restored_still(aged):
    kept = aged(MAX_SEQUENCE - KEPT_SEQUENCES - 2)
    group, controller = kept.group, kept.group.controllers[0]
    assert "1 more commands can be given" in " ".join(controller.status().advice)
    group.publish(2)
    assert controller.update(2).sequence == MAX_SEQUENCE - KEPT_SEQUENCES
    assert controller.update(2).outcome is Outcome.ALREADY_SERVED
    for command in (lambda: controller.update(1), controller.clear):
        with raising(RefusedError, match="start it again: its new segment counts from 0") as caught:
            command()
        assert caught.value.code == "commands-used-up"
    facts = read_facts(group.name, kept.segment, lock_file=kept.segment.lock_file)
    told = (status_text(facts), explain(facts).text())
    assert all("0 more commands" in text for text in told)
    kept.kill(0)
    assert kept.recover(0).version == "2"
    group.await_steps()
    group.stop()
    group.assert_journals_are_possible()


def test_a_young_group_says_nothing_of_its_end():
    assert CommandWord(1, 0, Operation.NONE).commands_left > FEW_SEQUENCES
