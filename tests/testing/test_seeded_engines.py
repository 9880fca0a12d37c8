"""Engines whose scheduler breaks one promise: the contract finds each, and so does the machine."""

from __future__ import annotations

from unittest import SkipTest

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import wsm
from tests.in_memory_work import InMemoryWork
from wsm.strategies import TensorSpec
from wsm.testing import InMemoryRequests, InMemoryRunner, RunnerContract
from wsm.testing.hypothesis import GroupMachine

SPECS = (TensorSpec("weight", "F32", (8,)),)


class Believed(InMemoryRequests):
    """Does not say whether it admits, so that only requests show it."""

    is_admitting = None


class FreezeDropsRequests(InMemoryRequests):
    def freeze(self):
        frozen, self.running = len(self.running), []
        return frozen


class AbortAllAbortsNone(InMemoryRequests):
    def abort_all(self):
        return 0


class AbortAllAnswersNone(InMemoryRequests):
    def abort_all(self):
        ended, self.running = len(self.running), []
        return ended


class StopAdmittingDoesNothing(Believed):
    def stop_admitting(self):
        pass


class ResumeAdmittingDoesNothing(Believed):
    def resume_admitting(self):
        pass


SEEDED = {
    FreezeDropsRequests: "set_aside() is 0",
    AbortAllAbortsNone: "abort_all() returns 0, and 2 ran",
    AbortAllAnswersNone: "abort_all() is to answer 2",
    StopAdmittingDoesNothing: "3 requests run, and 2 did before stop_admitting()",
    ResumeAdmittingDoesNothing: "no request begins on each rank",
}


class Served(InMemoryWork):
    scheduler = InMemoryRequests

    def make_runner(self, rank):
        runner = InMemoryRunner(SPECS)
        runner.requests = self.scheduler()
        return runner


@pytest.mark.slow_but("*-stage_weights", "*-flip_weights", "abort")
class TestTheGoodEngine(Served, RunnerContract):
    plans = ("hot",)
    ways = ("raises",)


@pytest.mark.parametrize("scheduler", SEEDED, ids=lambda scheduler: scheduler.__name__)
def test_the_contract_finds_a_scheduler_that_breaks_a_promise(scheduler, tmp_path):
    contract = type("Broken", (Served, RunnerContract), {"scheduler": scheduler})()
    found = []
    for test in (
        contract.test_no_request_begins_between_stop_admitting_and_resume_admitting,
        contract.test_what_is_ended_is_answered_and_what_is_set_aside_goes_on,
    ):
        directory = tmp_path / test.__name__
        directory.mkdir()
        try:
            test(directory)
        except AssertionError as error:
            found.append(str(error))
    assert SEEDED[scheduler] in "; ".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SEEDED, ids=lambda scheduler: scheduler.__name__)
def test_the_machine_finds_a_scheduler_that_breaks_a_promise(scheduler):
    machine = type("Broken", (Served, GroupMachine), {"scheduler": scheduler})
    with pytest.raises((AssertionError, wsm.GroupError)):
        run_state_machine_as_test(
            seed(0)(machine),
            settings=settings(
                max_examples=100,
                stateful_step_count=10,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


class Unwritten(RunnerContract):
    def make_runner(self, rank):
        runner = InMemoryRunner(SPECS)
        runner.requests = Believed()
        return runner


def test_a_contract_that_cannot_put_requests_in_names_the_methods_that_it_lacks(tmp_path):
    contract = Unwritten()
    with pytest.raises(SkipTest, match="write turn, submit, answered"):
        contract.test_what_is_ended_is_answered_and_what_is_set_aside_goes_on(tmp_path)


def test_a_contract_says_that_admission_is_believed_where_the_scheduler_does_not_say_it(tmp_path):
    with pytest.raises(SkipTest, match="Believed has no is_admitting"):
        Unwritten().test_the_scheduler_says_whether_it_admits(tmp_path)
