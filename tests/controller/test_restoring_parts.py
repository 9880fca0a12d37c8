"""A group that lost a rank after partial updates serves the same bytes again, or says at once why not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wsm.command import RankReport
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.controller.outcome import cannot_be_restored
from wsm.strategies import Retention, publish_snapshot
from wsm.worker._command import ResidentFacts

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_group import LivingGroup, shard_of
from recovered_group import recovered

processes = pytest.mark.processes


@pytest.fixture
def kept(tmp_path):
    """A group of two that serves version 1, and is owned by the test."""
    with recovered(LivingGroup(tmp_path, load=0.5)) as kept:
        kept.group.boot()
        yield kept


def publish_part(kept, version: int, *names: str) -> None:
    shards = {
        rank: {name: shard_of(version, rank)[name] for name in names} for rank in range(kept.group.ranks)
    }
    kept.group.published[version] = publish_snapshot(
        kept.group.snapshots, version, shards, retain=Retention(keep=1), durable=False
    )


def put_on(kept, version: int, *names: str):
    """Publish a part and put it on what is served; the digests of the version are those of the whole then."""
    publish_part(kept, version, *names)
    receipt = kept.group.controllers[0].update(version, partial=True)
    digests = {report.rank: report.digest for report in receipt.ranks}
    kept.group.published[version] = replace(kept.group.published[version], digests=digests)
    return receipt


def versions(kept) -> set[int]:
    return {int(path.name) for path in (kept.group.snapshots / "versions").iterdir() if path.name.isdigit()}


def digests(receipt) -> list[str]:
    return [report.digest for report in receipt.ranks]


@pytest.mark.slow
@processes
def test_what_parts_were_put_on_is_kept_and_loaded_again_in_order_before_them(kept):
    put_on(kept, 2, "layer.weight")
    part = put_on(kept, 3, "layer.bias", "layer.weight")
    assert [report.bases for report in part.ranks] == [("1",), ("1",)]  # whose tensors have all come again
    part = put_on(kept, 4, "layer.bias")
    assert part.restorable
    assert [report.bases for report in part.ranks] == [("1", "3"), ("1", "3")]
    assert {1, 3, 4} <= versions(kept)  # of which the publisher was to keep one
    kept.group.await_steps()
    for gone in ([1], [0], [0, 1]):
        kept.kill(*gone)
        receipt = kept.recover(*gone)
        assert (receipt.version, digests(receipt)) == ("4", digests(part))
        kept.group.await_steps()
    kept.group.assert_steps_are_pure([4])
    kept.group.publish(5)
    whole = kept.group.controllers[0].update(5)
    assert [report.bases for report in whole.ranks] == [(), ()]
    publish_part(kept, 6, "layer.bias")
    assert versions(kept) & {1, 2, 3, 4} == set()


@processes
def test_a_rank_that_dies_before_it_says_that_it_has_committed_is_restored_by_what_it_prepared(kept):
    publish_part(kept, 2, "layer.bias")
    kept.group.order(1, "resume_admitting", "hold")
    pending = kept.group.controllers[0].begin_update(2, partial=True)
    kept.group.await_held(1, "resume_admitting")
    kept.kill(1)
    kept.group.revoke(1, "resume_admitting")
    with pytest.raises(Exception, match="rank 1"):
        pending.result(60)
    kept.begin(1)
    kept.replace(1)
    damaged = max(kept.group.shard_files(1, 1), key=lambda file: file.stat().st_size)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RankFailedError, match="2 is a part, put on version 1, which cannot be loaded"):
        kept.restore()
    damaged.write_bytes(whole)
    receipt = kept.restore()
    assert (receipt.version, [report.bases for report in receipt.ranks]) == ("2", [("1",), ("1",)])


@processes
def test_a_part_on_what_nobody_keeps_is_reported_so_and_given_up_at_the_first_attempt(tmp_path):
    with recovered(LivingGroup(tmp_path)) as kept:
        kept.group.publish(1)
        places = kept.group.snapshots / "versions"
        # As a trainer leaves it that writes one version over the other, without directories of versions.
        for path in (places / "1").iterdir():
            path.rename(kept.group.snapshots / path.name)
        for path in [*places.rglob("*"), places]:
            path.rmdir() if path.is_dir() else path.unlink()
        kept.group.start()
        kept.group.controller().update(1)
        publish_part(kept, 2, "layer.bias")
        receipt = kept.group.controllers[0].update(2, partial=True)
        assert not receipt.restorable
        assert "no lost rank can be restored until a whole version is loaded" in receipt.sentence()
        kept.kill(1)
        kept.begin(1)
        kept.replace(1)
        with pytest.raises(CommandRefusedError, match="update to a whole version") as caught:
            kept.restore()
        assert cannot_be_restored(caught.value)  # so a keeper makes no second attempt


def committed(holding: ResidentFacts, version: int, absent: set[str]) -> tuple[int, ...]:
    bases = holding.bases_of_part(version, absent)
    facts = {"partial": True, "not_loaded": sorted(absent), "restorable": True}
    holding.committed(RankReport(rank=0, version=version, bases=bases, facts=facts))
    return bases


def test_a_part_is_needed_until_all_that_it_brought_has_come_again():
    holding = ResidentFacts()
    holding.committed(RankReport(rank=0, version=1))
    names = {"a", "b", "c", "d"}
    assert committed(holding, 2, names - {"a"}) == (1,)
    assert committed(holding, 3, names - {"b", "c"}) == (1, 2)
    assert committed(holding, 4, names - {"b"}) == (1, 2, 3)
    assert committed(holding, 5, names - {"c", "a"}) == (1, 4)  # 3 brought b and c: both have come again
    assert committed(holding, 6, names - {"d"}) == (1, 4, 5)
    assert committed(holding, 6, names - {"d"}) == (1, 4, 5)  # the same number once more
    holding.committed(RankReport(rank=0, version=7))
    assert committed(holding, 8, names - {"a"}) == (7,)


@pytest.mark.parametrize("restorable", [True, False])
def test_a_command_about_another_half_says_of_a_part_whether_it_can_be_loaded_again(restorable):
    holding = ResidentFacts()
    holding.committed(RankReport(rank=0, version=1))
    facts = {"partial": True, "not_loaded": ["a"], "restorable": restorable}
    holding.committed(RankReport(rank=0, version=2, bases=(1,), facts=facts))
    assert (holding.weights["bases"], holding.weights["restorable"]) == ((1,), restorable)
