"""A rank that is lost while the others are inside an entry of FastDeploy's loop."""

from __future__ import annotations

import time

import numpy as np
import pytest
from living_group import eventually

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


def test_a_rank_that_dies_in_the_load_at_start_ends_it_on_every_other_rank(make_job):
    job = make_job(part=3, starts=False)
    job.order(1, "write is its end")
    job.launch()
    for rank in (0, 2):
        assert "no weights after the load at start" in "".join(job.programs[rank].last_lines())


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named_by_status_with_the_time_when_it_was_last_seen(make_job):
    job = make_job("2026")
    live = np.memmap(
        job.directory / f"worker_healthy_live_signal.{job.ports[0]}", np.int32, mode="w+", shape=(2,)
    )
    late = job.order(1, "late")
    job.asks(CLEARING)
    job.programs[0].says("entered")
    live[1] = int(time.time()) - 40
    assert job.reads() == [CLEARING], "the answer waits for all ranks"
    status = job.controller().status
    eventually(lambda: status().headline == "waits for rank 1 in entry 1 of FastDeploy's loop")
    seen = time.strftime("%H:%M:%S", time.localtime(int(live[1])))
    eventually(lambda: status().because == f"the loop of rank 1 was last seen at work at {seen}")
    assert str(status().ranks[1].pid) in status().advice[0]
    late.unlink()
    job.answers(CLEARED)
    assert "waits" not in status().headline
    job.asks(UPDATING)
    job.answers(NORMAL)
    job.end()
