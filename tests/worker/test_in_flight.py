"""What becomes of requests that run when a command arrives: abort, drain, keep."""

from __future__ import annotations

import numpy as np
import pytest

from tests.incident import incident
from wsm import Deadlines, InFlightPolicy, SnapshotConfig
from wsm.controller.errors import CommandRefusedError, CommandTimeoutError, RankFailedError
from wsm.strategies import publish_snapshot
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup

MANY = 1_000_000


class BusyGroup:
    """Two ranks in this thread that serve version 1, and step wherever a command waits."""

    def __init__(self, directory, **configuration):
        specs = [TensorSpec("weight", "F32", (8, 8))]
        loads = {"load": None} if configuration else {}
        configured = {"deadlines": Deadlines(drain_s=20.0), **configuration}
        options = {"configuration": configured, "meanwhile": self.work, **loads}
        self.local = LocalGroup(lambda _: InMemoryRunner(specs), directory, **options)
        self.requests = [runner.requests for runner in self.local.runners]
        self.versions = []

    def work(self, seconds=0.02):
        for rank, requests in enumerate(self.requests):
            was_inside = rank in self.local.in_step
            self.local.move(rank, works=requests.has_work())
            inside = self.local.in_step.get(rank)
            if inside is not None and not was_inside and rank == 0:
                self.versions.append(inside.version)
            if inside is None and was_inside:
                requests.advance()
        self.local.clock.advance(seconds)

    def begin(self, steps):
        self.requests[0].submit(steps)
        while not self.requests[0].running:
            self.work()


@pytest.fixture
def group(tmp_path):
    busy = BusyGroup(tmp_path)
    with busy.local:
        busy.local.update(1)
        yield busy
        busy.local.check_journals()


def test_abort_ends_running_requests_and_leaves_queued_ones_where_they_are(group):
    group.begin(MANY)
    receipt = group.local.update(1, force=True, in_flight=InFlightPolicy.ABORT)
    assert receipt.ranks[0].facts["requests_aborted"] == 1
    assert group.requests[0].running == []
    assert [requests.aborted for requests in group.requests] == [1, 0]


@incident("FastDeploy#7825")
def test_drain_lets_running_requests_finish_on_the_old_version(group):
    group.begin(150)
    group.local.update(2, in_flight=InFlightPolicy.DRAIN)
    assert [requests.finished for requests in group.requests] == [1, 0]
    assert group.versions == ["1"] * 150
    assert group.local.step() == "2"


def test_keep_freezes_running_requests_and_finishes_them_on_the_new_version(group):
    group.begin(MANY)
    group.local.clear(in_flight=InFlightPolicy.KEEP)
    assert len(group.requests[0].frozen) == 1
    assert not group.requests[0].admitting
    group.local.update(2)
    group.versions.clear()
    for _ in range(20):
        group.work()
    assert set(group.versions) == {"2"}
    assert len(group.requests[0].running) == 1


@incident("FastDeploy#6239")
def test_a_drain_that_outlasts_its_caller_is_aborted_and_the_request_runs_on(group):
    group.begin(MANY)
    with pytest.raises(CommandTimeoutError, match=r"waiting for rank 0 \(is draining\)") as caught:
        group.local.update(2, in_flight=InFlightPolicy.DRAIN, deadline_s=10)
    assert caught.value.gave_up is False
    runs_on(group)


def test_a_drain_that_outlasts_the_ranks_own_deadline_fails_and_changes_nothing(group):
    group.begin(MANY)
    with pytest.raises(RankFailedError, match="1 requests to finish") as caught:
        group.local.update(2, in_flight=InFlightPolicy.DRAIN, deadline_s=1000)
    assert (caught.value.rank, caught.value.error) == (0, "wait-expired")
    runs_on(group)


def runs_on(group):
    """The request runs on, on the old version."""
    group.versions.clear()
    for _ in range(20):
        group.work()
    assert len(group.requests[0].running) == 1
    assert group.requests[0].admitting
    assert set(group.versions) == {"1"}


def test_a_version_that_is_not_there_ends_no_request(tmp_path):
    tensors = {"weight": np.ones((8, 8), np.float32)}
    publish_snapshot(tmp_path / "published", 1, {0: tensors, 1: tensors})
    group = BusyGroup(tmp_path, snapshot=SnapshotConfig(directory=str(tmp_path / "published")))
    with group.local:
        group.local.update(1)
        group.begin(MANY)
        with pytest.raises(CommandRefusedError, match="no snapshot found") as caught:
            group.local.update("1o", in_flight=InFlightPolicy.ABORT)
        assert caught.value.error == "snapshot-not-found"
        runs_on(group)
