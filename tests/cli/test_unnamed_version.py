"""An update that names no version, and a publication in the middle of it: one version on all ranks."""

from __future__ import annotations

import shutil

import pytest
from commanded_group import PATIENCE_S, LivingGroup
from small_model import publish

from wsm import Controller
from wsm.controller.errors import CommandRefusedError

pytestmark = pytest.mark.processes


@pytest.fixture
def group(group: LivingGroup) -> LivingGroup:
    """The same group, with versions 1 and 2 alone."""
    for version in (1, 2):
        publish(group.snapshots, version)
    return group


@pytest.mark.parametrize("cleared", [True, False], ids=["from cleared", "in place"])
def test_a_rank_that_comes_late_takes_what_rank_0_found(group: LivingGroup, cleared: bool) -> None:
    with Controller(group.name) as controller:
        if not cleared:
            controller.update(1)
        group.stop(1)
        pending = controller.begin_update()
        group.until(lambda status: status.ranks[0].code in ("DRAINING", "PARKING"))
        publish(group.snapshots, 3)
        group.resume(1)
        receipt = pending.result(PATIENCE_S)
    assert receipt.version == "2"
    assert {report.version for report in receipt.ranks} == {"2"}
    assert len({report.digest for report in receipt.ranks}) == 1


def test_the_others_wait_until_rank_0_has_looked(group: LivingGroup) -> None:
    with Controller(group.name) as controller:
        group.stop(0)
        pending = controller.begin_update()
        pending.written()
        seen = controller.status().ranks[1].heartbeat
        group.until(lambda status: status.ranks[1].heartbeat > seen + 3)  # it has looked at the command
        publish(group.snapshots, 3)
        group.resume(0)
        assert pending.result(PATIENCE_S).version == "3"


def test_an_update_without_anything_announced_is_refused_and_the_old_version_serves(
    group: LivingGroup,
) -> None:
    with Controller(group.name) as controller:
        controller.update(1)
        kept = group.snapshots.rename(group.snapshots.with_name("kept"))
        try:
            with pytest.raises(CommandRefusedError, match="rank 0") as caught:
                controller.update()
        finally:
            shutil.rmtree(group.snapshots, ignore_errors=True)
            kept.rename(group.snapshots)
        assert caught.value.context["rank"] == 0
        assert controller.status().serving
        assert controller.status().version == "1"
