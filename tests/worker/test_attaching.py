"""Which segment a rank joins, when it waits, and when it is refused: all about segments of others."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
from living_group import eventually
from lone_rank import SPECS

import wsm
from tests.incident import incident
from tests.raising import raising
from wsm import SERVE, ConfigurationError, Deadlines, WsmConfig
from wsm.controller.errors import RankLostError
from wsm.group_segment import own_group
from wsm.signals.errors import SegmentMissingError, SegmentReplacedError
from wsm.signals.layout import segment_path
from wsm.signals.ownership import claimed
from wsm.signals.presence import Occupant, ProcessIdentity, write_occupant
from wsm.signals.segment import Segment
from wsm.states.errors import CommandOpenError, EpochUsedError
from wsm.states.words import CommandWord
from wsm.testing import InMemoryRunner
from wsm.worker.errors import WaitExpiredError

TWO = WsmConfig("pair", 2, run_id="this run", deadlines=Deadlines(attach_s=0.3))


@pytest.fixture
def join(tmp_path):
    """`join(config, rank)`: a worker that leaves when the test ends."""
    workers = []

    def attach(config: WsmConfig, rank: int) -> wsm.Worker:
        workers.append(wsm.Worker(config, InMemoryRunner(SPECS), rank=rank, directory=tmp_path))
        return workers[-1]

    yield attach
    for worker in reversed(workers):
        worker.close()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_rank_that_finds_no_segment_says_for_what_it_waited(join, tmp_path):
    with pytest.raises(WaitExpiredError, match="segment of group 'pair' \\(run this run\\)") as caught:
        join(TWO, 1)
    assert (caught.value.rank, caught.value.wait) == (1, "attach")
    assert files(tmp_path) == []


def test_rank_0_owns_the_group_where_nobody_else_does_and_removes_it_at_the_end(join, tmp_path):
    zero, one = join(TWO, 0), join(TWO, 1)
    with wsm.Controller("pair", directory=tmp_path) as controller:
        assert controller.status().run_id == "this run"
    one.close()
    assert "wsm.pair" in files(tmp_path)
    zero.close()
    assert files(tmp_path) == []


def test_a_supervisor_owns_the_group_and_outlives_its_ranks(join, tmp_path):
    with own_group(TWO, directory=tmp_path) as segment:
        zero, one = join(TWO, 0), join(TWO, 1)
        zero.close()
        one.close()
        assert not segment.inode_changed()
        segment.unlink()


def test_a_rank_waits_for_the_owner(join, tmp_path):
    patient = dataclasses.replace(TWO, deadlines=Deadlines(attach_s=30))
    found = []
    thread = threading.Thread(target=lambda: found.append(join(patient, 1)))
    thread.start()
    join(TWO, 0)
    thread.join(30)
    assert found[0].rank == 1


@pytest.mark.parametrize(
    "other",
    [
        {"follow": False},
        {"strategy": "rsync"},
        {"communicators": {"tp": [[0, 1]]}},
    ],
)
def test_ranks_that_were_told_different_things_do_not_form_a_group(join, other):
    join(TWO, 0)
    with pytest.raises(ConfigurationError, match="something else"):
        join(dataclasses.replace(TWO, **other), 1)


def test_a_rank_that_is_none_of_the_group_is_refused(join):
    with pytest.raises(ConfigurationError, match="2 is none of 2 ranks"):
        join(TWO, 2)


def test_a_strategy_that_does_not_exist_is_refused_before_anything_is_made(join, tmp_path):
    with raising("unknown-strategy", match="'teleport'; use one of"):
        join(dataclasses.replace(TWO, strategy="teleport"), 0)
    assert files(tmp_path) == []


def left_behind_by_a_dead_run(directory: Path, config: WsmConfig) -> None:
    """A segment whose owner and ranks are gone, with its words as they were."""
    segment = own_group(config, directory=directory)
    segment.words[segment.layout.command] = CommandWord(3, 7, 3).pack()
    segment.close()  # without unlink: as if the process had died


def test_a_rank_does_not_settle_in_the_segment_of_a_dead_run(join, tmp_path):
    """It would keep the new owner from creating its own, and would be refused in the old epoch."""
    left_behind_by_a_dead_run(tmp_path, TWO)
    with pytest.raises(WaitExpiredError):
        join(TWO, 1)
    zero, one = join(TWO, 0), join(TWO, 1)
    assert [worker.weights.name for worker in (zero, one)] == ["CLEARED", "CLEARED"]
    segment = one._attachment.segment
    assert CommandWord.unpack(segment.words[segment.layout.command]).epoch == 1


@pytest.mark.slow_but
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_rank_does_not_settle_there_while_its_next_owner_still_looks_at_it(join, tmp_path, was_killed):
    any_run = dataclasses.replace(TWO, run_id="")
    left_behind_by_a_dead_run(tmp_path, any_run)
    if was_killed:
        gone = ProcessIdentity.current()._replace(pid=1 << 23)
        with Segment.attach("pair", directory=tmp_path) as segment:
            write_occupant(segment.words, segment.layout.owner, Occupant(gone, present=True))
    with claimed(segment_path("pair", tmp_path)), pytest.raises(WaitExpiredError):
        join(any_run, 1)
    zero, one = join(any_run, 0), join(any_run, 1)
    assert (zero.rank, one.rank) == (0, 1)


def test_no_rank_settles_among_ranks_of_another_run_that_still_live(join, tmp_path):
    earlier = dataclasses.replace(TWO, run_id="earlier run")
    owner = own_group(earlier, directory=tmp_path)
    old = join(earlier, 1)
    owner.close()  # the owner has died, its rank lives
    with pytest.raises(WaitExpiredError):
        join(TWO, 0)
    assert not old._attachment.segment.inode_changed()
    old.close()
    assert join(TWO, 0).rank == 0  # now nobody lives there any more


def test_a_replacement_in_the_same_epoch_is_refused_and_leaves_the_others_their_segment(join, tmp_path):
    zero, one = join(TWO, 0), join(TWO, 1)
    segment = zero._attachment.segment
    zero._attachment._registration.release()
    segment.close()  # without unlink: rank 0, the owner, has died
    with pytest.raises(EpochUsedError):
        join(TWO, 0)
    assert not one._attachment.segment.inode_changed()
    with pytest.raises(EpochUsedError):  # and not "slot taken": the refused one has left
        join(TWO, 0)


def test_a_constructor_that_fails_leaves_nothing_behind(join, tmp_path):
    bad = dataclasses.replace(TWO, journal_directory=str(tmp_path / "journals"))
    (tmp_path / "journals").write_text("no directory")
    with pytest.raises(NotADirectoryError):
        join(bad, 0)
    assert files(tmp_path) == ["journals"]


def test_a_rank_notices_that_its_segment_was_created_anew(join, tmp_path):
    zero = join(TWO, 0)
    (tmp_path / "wsm.pair").unlink()
    with pytest.raises(SegmentReplacedError):
        any(zero.poll() is SERVE for _ in range(1000))


def test_a_loop_that_waits_in_a_selector_notices_it_too(join, tmp_path):
    zero = join(TWO, 0)
    zero.poll()
    zero.fileno()
    (tmp_path / "wsm.pair").unlink()
    with pytest.raises(SegmentReplacedError):
        eventually(lambda: zero.wait(0.01) and zero.poll() and False)


def test_no_command_is_taken_before_every_rank_has_joined(join, tmp_path):
    join(TWO, 0)
    with (
        wsm.Controller("pair", directory=tmp_path) as controller,
        pytest.raises(CommandOpenError, match="rank 1: has not joined") as caught,
    ):
        controller.update(1)
    assert caught.value.waiting == {1: "has not joined the group"}


def test_no_command_is_taken_before_the_owner_has_begun_the_first_epoch(tmp_path):
    with Segment.create_or_adopt(
        "early", world_size=1, run_id="r", configuration_digest=1, directory=tmp_path
    ) as segment:
        with wsm.Controller("early", directory=tmp_path) as controller:
            with pytest.raises(CommandOpenError, match="has not joined"):
                controller.clear()
            assert controller.status().state == "CLEARED"
        assert segment.words[segment.layout.command] == 0
        segment.unlink()


@incident("FastDeploy#5529")
def test_a_rank_that_left_in_good_order_is_lost_to_the_group(join, tmp_path):
    join(TWO, 0)
    one = join(TWO, 1)
    with wsm.Controller("pair", directory=tmp_path) as controller:
        one.close()
        with pytest.raises(RankLostError, match="rank 1 is gone") as caught:
            controller.clear()
        assert caught.value.ranks == (1,)


def test_a_controller_of_a_group_that_is_not_there_is_told_so(tmp_path):
    with pytest.raises(SegmentMissingError):
        wsm.Controller("nobody", directory=tmp_path)
