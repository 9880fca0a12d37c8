"""A decided commit is final: what raises on the way is told to the loop, and tried again at the next poll."""

from __future__ import annotations

import pytest

import wsm


def test_a_rank_that_cannot_admit_requests_tells_its_loop_and_tries_again(make_lone, monkeypatch):
    lone = make_lone()
    lone.update(1)
    resume, failures = (
        lone.runner.requests.resume_admitting,
        iter([OSError("no scheduler"), ValueError("no queue")]),
    )

    def resume_at_the_third_time():
        error = next(failures, None)
        if error is not None:
            raise error
        resume()

    monkeypatch.setattr(lone.runner.requests, "resume_admitting", resume_at_the_third_time)
    pending = lone.controller.begin_update(2)
    pending.written(10)
    for error in (OSError, ValueError):
        with pytest.raises(error):
            lone.run(pending)
        assert not lone.runner.requests.admitting
        with pytest.raises(wsm.worker.errors.NotServingError), lone.worker.step():
            pytest.fail("it stepped before its commit was done")
        assert not pending.over
    lone.run(pending)
    assert pending.result().version == "2"
    assert lone.runner.requests.admitting
    assert lone.worker.poll() is wsm.SERVE
