"""What a caller gets for a command that worked, or that had nothing to do."""

from __future__ import annotations

import json

import pytest
from living_group import eventually, shard_of
from rank_process import SPECS

import wsm
from tests.incident import incident
from wsm import Outcome
from wsm.controller._transaction import Transaction
from wsm.strategies import publish_snapshot
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.testing import InMemoryRunner, LocalGroup


class Trainer:
    """Publishes versions for two ranks."""

    booted: wsm.Receipt

    def __init__(self, directory):
        self.directory = directory
        self.first = self.publish(1)

    def publish(self, version, seed=""):
        shards = {rank: shard_of(version, rank, seed) for rank in range(2)}
        return publish_snapshot(self.directory, version, shards, durable=False, replace=bool(seed))


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path / "snapshots")


@pytest.fixture
def local(tmp_path, trainer):
    """Two ranks in this thread that serve version 1."""
    configuration = {
        "snapshot": SnapshotConfig(directory=str(trainer.directory), device_ids=(0, 1)),
        "journal_directory": str(tmp_path / "journals"),
    }
    runners = (lambda _: InMemoryRunner(SPECS), tmp_path)
    with LocalGroup(*runners, load=None, configuration=configuration) as made:
        trainer.booted = made.update(1, request_id="first")
        yield made
        made.check_journals()


def test_the_receipt_of_an_update_proves_what_every_rank_loaded(local, trainer):
    receipt = trainer.booted
    assert (receipt.request_id, receipt.outcome, receipt.loaded) == ("first", Outcome.UPDATED, True)
    assert (receipt.epoch, receipt.sequence) == (1, 1)
    assert (receipt.version, receipt.previous_version) == ("1", None)
    assert receipt.manifest_digest == trainer.first.manifest_digest
    assert {report.rank: report.digest for report in receipt.ranks} == trainer.first.digests
    assert all(report.bytes == 2048 + 512 + 64 and report.tensors == 3 for report in receipt.ranks)
    for report in receipt.ranks:
        assert "load_weights" in {action.name for action in report.actions}
        assert all(action.seconds >= 0 for action in report.actions)
    assert receipt.pause_s == 0  # nobody had served before
    assert json.loads(json.dumps(receipt.to_mapping()))["ranks"][1]["version"] == "1"


def test_bytes_are_called_verified_where_every_rank_says_so_of_its_load(local, trainer, tmp_path):
    assert trainer.booted.verified is True
    directory = tmp_path / "whose load says nothing"
    directory.mkdir()
    with LocalGroup(lambda _: InMemoryRunner(SPECS), directory) as silent:
        assert silent.update(1).verified is None


@pytest.mark.processes
def test_an_update_takes_no_less_than_its_ranks_did_where_its_controller_is_slow(group, monkeypatch):
    written = Transaction.wrote

    def wrote_late(transaction, command, arguments):
        eventually(lambda: set(group.codes()) == {"PREPARED"}, "every rank has loaded")
        written(transaction, command, arguments)

    with group.boot() as controller:
        group.publish(2)
        monkeypatch.setattr(Transaction, "wrote", wrote_late)
        receipt = controller.update(2)
        for report in receipt.ranks:
            assert sum(action.seconds for action in report.actions) <= receipt.seconds


@incident("marin#8955")
def test_an_update_of_a_serving_group_says_how_long_it_paused(local):
    local.clear()
    local.clock.advance(7)
    again = local.update(1)
    assert again.pause_s >= 7  # the time without weights counts
    assert again.previous_version == "1"


@incident("OpenRLHF#660")
def test_a_version_that_is_served_already_is_not_loaded_again(local, trainer):
    receipt = local.update(1, request_id="again")
    assert (receipt.outcome, receipt.loaded, receipt.version) == (Outcome.ALREADY_SERVED, False, "1")
    assert (receipt.sequence, receipt.request_id) == (1, "again")
    assert receipt.manifest_digest == trainer.first.manifest_digest
    assert local.controller.status().sequence == 1
    assert local.update(1, force=True).outcome is Outcome.UPDATED


def test_what_is_announced_and_held_is_not_loaded_again_by_who_names_no_version(local, trainer):
    for tags in (wsm.ALL_TAGS, {wsm.Tag.WEIGHTS}):
        receipt = local.update(tags=tags, request_id="newest")
        assert (receipt.outcome, receipt.loaded, receipt.version) == (Outcome.ALREADY_SERVED, False, "1")
        assert receipt.request_id == "newest"
        assert receipt.manifest_digest == trainer.first.manifest_digest
        assert local.controller.status().serving
    assert local.update(hot=True).outcome is Outcome.ALREADY_SERVED
    assert local.update(force=True).outcome is Outcome.UPDATED
    local.clear(tags={wsm.Tag.KV_CACHE})
    receipt = local.update(tags={wsm.Tag.WEIGHTS})
    assert (receipt.outcome, receipt.missing) == (Outcome.ALREADY_HELD, ("kv_cache",))
    assert not local.update().loaded
    trainer.publish(2)
    receipt = local.update(tags={wsm.Tag.WEIGHTS})
    assert (receipt.outcome, receipt.version) == (Outcome.UPDATED, "2")


def test_a_cleared_group_is_not_cleared_again(local):
    assert local.clear().outcome is Outcome.CLEARED
    receipt = local.clear()
    assert (receipt.outcome, receipt.loaded, receipt.version) == (Outcome.ALREADY_CLEARED, False, None)
    assert local.update(1).outcome is Outcome.UPDATED


@pytest.mark.slow
@incident("FastDeploy C2-20")
@pytest.mark.processes
def test_an_update_without_a_version_takes_the_newest_every_time(group):
    """The version is known to the ranks alone, which may have committed before the controller looks."""
    with group.boot() as controller:
        for version in range(2, 12):
            group.publish(version)
            receipt = controller.update(settle_s=5)
            assert (receipt.outcome, receipt.version) == (Outcome.UPDATED, str(version))
            assert controller.status().version == str(version)


@incident("FastDeploy#7430")
def test_a_pending_command_is_over_when_its_receipt_is_there(local, tmp_path):
    with wsm.Controller("tested", directory=tmp_path) as controller:
        pending = controller.begin_clear(request_id="later")
        receipt = local.run(pending)
        assert pending.over
        assert (pending.request_id, receipt.request_id) == ("later", "later")
        assert pending.result() is receipt


@pytest.mark.processes
def test_a_status_is_plain_data(group):
    with group.boot() as controller:
        status = controller.status()
        assert (status.serving, status.state, status.over, status.version) == (True, "NORMAL", True, "1")
        assert status.owner_pid == group.programs[0].pid
        assert status.controller_pid is None
        assert [rank.pid for rank in status.ranks] == [program.pid for program in group.programs.values()]
        assert json.loads(json.dumps(status.to_mapping()))["serving"] is True


def test_a_forced_load_of_other_content_is_told_by_the_digest_of_what_all_ranks_loaded(
    local, trainer, tmp_path
):
    assert local.update(1, force=True).content_digest is None
    published = trainer.publish(1, seed="other")
    receipt = local.update(1, force=True)
    assert receipt.content_digest == receipt.manifest_digest == published.manifest_digest
    assert local.update(1).content_digest == receipt.content_digest
    assert local.controller.status().content_digest == receipt.content_digest
    local.close()
    told = [
        line
        for file in (tmp_path / "journals").glob("*.ndjson")
        for line in file.read_text().splitlines()
        if "content_digest" in line
    ]
    assert len(told) == 1 + 2, "the command's end, and what each rank serves"
    assert all(str(receipt.content_digest) in line for line in told)


def test_a_held_group_that_has_what_is_announced_serves_behind_an_update_that_is_to_serve(local):
    local.hold()
    assert not local.update().serving
    assert local.update(after="serve").serving
    assert local.controller.status().serving
