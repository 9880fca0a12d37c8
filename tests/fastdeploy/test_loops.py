"""FastDeploy's loops of December 2025 and of 2026, with wsm's weight manager, by their own words."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2

LOOPS = [("2025", True), ("2026", False), ("2026", True)]


@pytest.mark.parametrize(("generation", "block"), LOOPS)
def test_an_engine_clears_and_updates_through_its_word(make_job, generation, block):
    job = make_job(generation, block=block)
    for version in (2, 3):
        job.asks(CLEARING)
        job.answers(CLEARED)
        job.publish(version)
        job.asks(UPDATING)
        job.answers(NORMAL)
        stays = generation == "2025" or block
        for signal in (CLEARING,) if stays else (CLEARING, UPDATING):
            assert [said["signal"] for said in job.each_says("entered")] == [signal] * 2
            left = job.each_says("left")
        assert {said["version"] for said in left} == {str(version)}
        assert {said["version"] for said in job.each_says("stepped")} == {str(version)}
    status = job.controller().status()
    assert (status.serving, status.version) == (True, "3")
    turns = {said["turns"] for said in job.end()}
    assert len(turns) == 1
