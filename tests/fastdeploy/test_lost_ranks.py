"""A rank that is lost while the others are inside an entry of FastDeploy's loop."""

from __future__ import annotations

import pytest
from living_group import eventually

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

CLEARING, CLEARED = -1, -2


def test_a_rank_that_dies_in_the_load_at_start_ends_it_on_every_other_rank(make_job):
    job = make_job(part=3, starts=False)
    job.order(1, "write is its end")
    job.launch()
    for rank in (0, 2):
        assert "no weights after the load at start" in "".join(job.programs[rank].last_lines())


@pytest.mark.parametrize("lost", [0, 1])
def test_no_rank_waits_for_ever_for_one_that_is_gone(make_job, lost):
    job = make_job("2026", block=True)
    job.asks(CLEARING)
    job.answers(CLEARED)
    job.each_says("entered")
    job.programs[lost].kill()
    left = job.programs[1 - lost]
    eventually(left.has_ended, "the other rank ends, too")
    with pytest.raises(
        pytest.fail.Exception, match=f"rank {lost} of group .* ended while rank {1 - lost} was"
    ):
        left.says("left")
