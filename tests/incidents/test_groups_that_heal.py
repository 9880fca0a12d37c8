"""Incidents in which a group that lost a process stayed lost, or came back as something that it was not."""

from __future__ import annotations

import operator

import pytest
from living_group import eventually
from recovered_group import recovered

from wsm.controller.errors import RankLostError
from wsm.states.words import CommandWord, Operation

pytestmark = pytest.mark.processes


@pytest.fixture
def kept(make_group):
    """Two ranks that serve version 1 and could load 2; the test is the owner of their processes."""
    with recovered(make_group()) as group:
        group.group.boot()
        group.group.publish(2)
        yield group


def commander(kept):
    return kept.group._controllers[0]


def test_vllm_40646_and_dynamo_14703_a_group_that_lost_a_rank_in_an_update_serves_again(kept):
    """There, the rest kept a dead communicator for ever, or a health check restarted one of many alone."""
    kept.group.order(1, "write", "hold")
    pending = commander(kept).begin_update(2, settle_s=0.5)
    kept.group.await_held(1, "write")
    kept.kill(1)
    kept.group.revoke(1, "write")
    with pytest.raises(RankLostError, match="rank 1"):
        pending.result()
    receipt = kept.recover(1)
    assert receipt is not None
    assert (
        receipt.version == "1"
    )  # the update was not committed: the last commanded state is the version before
    status = commander(kept).status()
    assert (status.epoch, status.serving, status.version) == (2, True, "1")
    assert commander(kept).update(2).version == "2"


def test_peers_4_4_a_cleared_group_does_not_take_its_memory_back_when_a_rank_dies(kept):
    """The trainer works in that memory: a recovery that loads there kills it."""
    commander(kept).clear()
    kept.kill(1)
    assert kept.recover(1) is None
    assert commander(kept).status().state == "CLEARED"


def test_vllm_39366_prime_rl_2325_and_fastdeploy_7642_words_of_the_past_move_nobody(kept):
    """There, a stale start re-activated paused engines, and each waited for another's collective."""
    group, layout = kept.segment.words, kept.segment.layout
    seen = [CommandWord.unpack(group[layout.command])]
    commander(kept).clear()
    seen.append(CommandWord.unpack(group[layout.command]))
    now = group[layout.command]
    for old in (seen[0], seen[0]._replace(operation=Operation.UPDATE), of_the_epoch_before(seen[1])):
        before = beats_of(kept)
        group[layout.command] = old.pack()
        eventually(lambda before=before: all(map(operator.lt, before, beats_of(kept))), "all have looked")
        assert {rank.weights for rank in commander(kept).status().ranks} == {"CLEARED"}
        assert {rank.sequence for rank in commander(kept).status().ranks} == {seen[1].sequence}
    group[layout.command] = now
    assert commander(kept).update(2).version == "2"


def of_the_epoch_before(command: CommandWord) -> CommandWord:
    """An update of an epoch that is over already."""
    return command._replace(epoch=command.epoch - 1, operation=Operation.UPDATE)


def beats_of(kept) -> list[int]:
    return [rank.heartbeat for rank in commander(kept).status().ranks]
