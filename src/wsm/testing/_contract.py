"""What every engine must pass: each of its actions fails at each boundary, and the group has one outcome.

A class for pytest, which nothing here imports: a test module derives from it and says how its engine is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest import SkipTest

from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner, KnownAdmission, KnownSetAside, StageableWeights
from wsm.controller.errors import RankFailedError
from wsm.states.plan_key import HOT
from wsm.states.vocabulary import InFlightPolicy, KVState, WeightState
from wsm.testing._engine import EngineUnderTest
from wsm.testing._faults import BEHIND_A_DECISION, Fault
from wsm.testing._group import COMMANDS, Command, LocalGroup
from wsm.worker import HOLD
from wsm.worker.errors import FlipFailedError

#: Steps of a request: more than turns pass before it is looked at.
_STEPS = 20


class Metafunc(Protocol):
    """What is used of pytest's own."""

    fixturenames: Sequence[str]

    def parametrize(self, argnames: str, argvalues: Sequence[object], *, ids: Sequence[str]) -> None:
        """Run a test once for each value."""
        ...


class RunnerContract(EngineUnderTest):
    """The contract of an engine with wsm; derive from it, and pytest runs it.

    Each rank's engine is made by :meth:`make_runner`; all ranks live in one thread, each test has a group of
    its own. A surface that waits for its peers inside a call needs ``ranks = 1``. The last rank fails.

    Attributes
    ----------
    plans : sequence of str
        The printed names of the plans whose actions are made to fail.
    ways : sequence of str
        How (:data:`wsm.testing.WAYS`).
    """

    plans: Sequence[str] = tuple(COMMANDS)
    ways: Sequence[str] = ("raises", "is not done", "outlasts its deadline")

    def pytest_generate_tests(self, metafunc: Metafunc) -> None:
        """Make one test of each action of each plan."""
        if "in_flight" in metafunc.fixturenames:
            policies = sorted(
                self.plan_options(self.make_runner(0)).in_flight_policies, key=lambda policy: policy.value
            )
            metafunc.parametrize("in_flight", policies, ids=[policy.value for policy in policies])
        for fixture, behind in (("place", False), ("place_behind_the_decision", True)):
            if fixture in metafunc.fixturenames:
                places = list(self._places(self.plans, behind=behind))
                metafunc.parametrize(fixture, places, ids=["-".join(place) for place in places])

    def _places(self, names: Sequence[str], *, behind: bool = False) -> Iterator[tuple[str, str]]:
        runner = self.make_runner(0)
        options = self.plan_options(runner).configured(
            shut_down_groups=bool(self.configuration.get("shut_down_groups")), deadlines={}
        )
        plans = derive_plans(options)
        for name in names:
            plan = plans.named(name)
            if plan.staged and not isinstance(runner.weights, StageableWeights):
                continue
            if not options.has_kv and "kv_cache" in name:
                continue
            before = plan.staging if plan.staged else plan.actions
            actions = plan.actions[len(before) :] if behind else before
            yield from ((name, action.name) for action in actions)

    def test_each_version_is_served_whole_and_what_a_clear_takes_an_update_brings_back(
        self, tmp_path: Path
    ) -> None:
        """Memory, graphs, buffers and groups are up after each update as after the first one."""
        with self.make_group(tmp_path) as group:
            nothing = group.memory()
            assert group.step() is None, "the group steps before anything is loaded"
            group.update(1)
            served = group.memory()
            for version, name in enumerate(self.plans, start=2):
                self._come_to(group, name)
                group.command(COMMANDS[name])
                group.update(version + 1, force=True)
                assert group.step() == str(version + 1), f"after {name}: the group serves another version"
                assert group.memory() == served, f"after {name} and an update: something else is up"
            group.clear()
            assert group.step() is None, "the group steps without weights"
            for before, after in zip(nothing, group.memory(), strict=True):
                for surface in ("weights", "kv_cache"):
                    assert after.get(surface) == before.get(surface), f"a clear leaves {surface}"
            group.check_journals()

    def test_an_action_that_fails_is_named_has_one_outcome_and_is_repaired(
        self, tmp_path: Path, place: tuple[str, str]
    ) -> None:
        """It raises, does not do its work, lacks something, or takes too long."""
        plan, action = place
        with self.make_group(tmp_path) as group:
            for way in self.ways:
                self._fail(group, Fault(plan, action, way, rank=self.ranks - 1))
            group.check_journals()

    def test_an_action_that_fails_behind_a_decision_takes_its_rank_and_no_decision_back(
        self, tmp_path: Path, place_behind_the_decision: tuple[str, str]
    ) -> None:
        """The rank never steps again; with another one in its place all serve what was decided."""
        plan, action = place_behind_the_decision
        with self.make_group(tmp_path) as group:
            for way in (way for way in self.ways if way in BEHIND_A_DECISION):
                fault = Fault(plan, action, way, rank=self.ranks - 1)
                self._come_to(group, plan)
                broken = None
                try:
                    group.command(COMMANDS[plan], fault=fault)
                except FlipFailedError as error:
                    broken = error
                assert broken is not None, f"{fault}: the command succeeded"
                said = broken.context
                assert (said["rank"], said["action"]) == (fault.rank, action), f"{fault}: {broken}"
                assert said["cause"], f"{fault}: the error names no cause"
                assert group.workers[fault.rank].poll() is HOLD, f"{fault}: the broken rank steps"
                group.replace(fault.rank)
                decided = COMMANDS[plan].options["version"]
                assert group.step() == str(decided), f"{fault}: the group does not serve what was decided"
                self._repair(group)
            group.check_journals()

    def test_an_undo_that_fails_takes_the_weights_of_all_ranks(self, tmp_path: Path) -> None:
        """What a rank has cannot be told after that, so no rank serves it."""
        with self.make_group(tmp_path) as group:
            group.update(1)
            first, second = [name for _, name in self._places(["update_in_place"])][:2]
            fault = Fault("update_in_place", second, rank=self.ranks - 1, undo=first)
            self._refuse(group, Command({"version": 2}), fault)
            assert group.step() is None, f"a rank serves, although the undo of {first} failed"
            self._repair(group)
            group.check_journals()

    def test_the_scheduler_says_whether_it_admits(self, tmp_path: Path) -> None:
        """Of one that does not, wsm believes that it admits again: a rank would serve and answer nothing."""
        with self._serving(tmp_path) as group:
            for requests in (runner.requests for runner in group.runners):
                if not isinstance(requests, KnownAdmission):
                    raise SkipTest(
                        f"{type(requests).__name__} has no is_admitting(): that resume_admitting() works is "
                        "believed, here and by each worker (wsm.actions.surfaces.KnownAdmission)"
                    )
                for admits in (False, False, True, True):  # both are idempotent
                    (requests.resume_admitting if admits else requests.stop_admitting)()
                    assert requests.is_admitting() is admits, f"is_admitting() is {not admits}"

    def test_no_request_begins_between_stop_admitting_and_resume_admitting(self, tmp_path: Path) -> None:
        """What runs goes on, and what is put in begins afterwards."""
        with self._serving(tmp_path, requests=True) as group:
            self._put_in(group)
            running = [runner.requests.in_flight() for runner in group.runners]
            for runner in group.runners:
                runner.requests.stop_admitting()
                self.submit(runner, _STEPS)
            for _ in range(_STEPS // 2):
                group.turn()
                for runner, before in zip(group.runners, running, strict=True):
                    now = runner.requests.in_flight()
                    assert now <= before, f"{now} requests run, and {before} did before stop_admitting()"
            for runner in group.runners:
                runner.requests.resume_admitting()
            self._require_answers(group, 3)

    def test_what_is_ended_is_answered_and_what_is_set_aside_goes_on(self, tmp_path: Path) -> None:
        """abort_all, freeze, hold and abort_set_aside, as far as the scheduler has them."""
        with self._serving(tmp_path, requests=True) as group:
            submitted = 0
            for name in ("abort_all", "freeze", "hold", "abort_set_aside"):
                if hasattr(group.runners[0].requests, name):
                    self._put_in(group)
                    submitted += 2
                    for runner in group.runners:
                        self._settle(runner, name)
                    self._require_answers(group, submitted)

    def test_requests_have_one_answer_each_whatever_becomes_of_them(
        self, tmp_path: Path, in_flight: InFlightPolicy
    ) -> None:
        """Those that run and those that wait, when an update, a clear, a hold or a hot update comes."""
        with self._serving(tmp_path, requests=True) as group:
            commands: list[Callable[..., object]] = [partial(group.update, 2), group.clear, group.hold]
            if isinstance(group.runners[0].weights, StageableWeights):
                commands.append(partial(group.update, 3, hot=True))
            for number, command in enumerate(commands, start=1):
                self._put_in(group)
                ran = [self.answered(runner) + runner.requests.in_flight() for runner in group.runners]
                for runner in group.runners:
                    self.submit(runner, 1)
                command(in_flight=in_flight)
                for runner, before in zip(group.runners, ran, strict=True):
                    if in_flight is not InFlightPolicy.KEEP:
                        assert self.answered(runner) >= before, f"{in_flight}: what ran has no answer"
                group.update(1)
                group.release()
                self._require_answers(group, 3 * number)

    @contextlib.contextmanager
    def _serving(self, directory: Path, *, requests: bool = False) -> Iterator[LocalGroup]:
        """Let a group serve; skip the test if it needs requests and none can be put in."""
        missing = self.missing_for_requests()
        if requests and missing:
            raise SkipTest(
                f"no request is put in: write {', '.join(missing)} (wsm.testing.EngineUnderTest); without it "
                "what the scheduler does with requests is believed"
            )
        with self.make_group(directory) as group:
            group.update(1)
            yield group

    def _put_in(self, group: LocalGroup) -> None:
        """Put two requests into each engine, and let them begin."""
        for runner in group.runners:
            self.submit(runner, _STEPS)
            self.submit(runner, _STEPS)
        for _ in range(_STEPS):
            group.turn()
            if all(runner.requests.in_flight() for runner in group.runners):
                return
        raise AssertionError(f"the group serves, and in {_STEPS} turns no request begins on each rank")

    def _settle(self, runner: BareRunner, name: str) -> None:
        """Let the scheduler end or set aside what runs, as an action does."""
        requests: Any = runner.requests
        running, answered = requests.in_flight(), self.answered(runner)
        requests.stop_admitting()
        if name == "abort_set_aside":
            requests.freeze()
        counted = getattr(requests, name)()
        assert counted == running, f"{name}() returns {counted}, and {running} ran"
        assert requests.in_flight() == 0, f"{name}() leaves {requests.in_flight()} in flight"
        ended = running if name.startswith("abort") else 0
        assert self.answered(runner) == answered + ended, f"{name}() is to answer {ended}"
        if isinstance(requests, KnownSetAside):
            assert requests.set_aside() == running - ended, f"set_aside() is {requests.set_aside()}"
        requests.resume_admitting()

    def _require_answers(self, group: LocalGroup, submitted: int) -> None:
        self.let_answer(group, [submitted] * self.ranks, turns=20 * _STEPS)

    def _come_to(self, group: LocalGroup, plan: str) -> None:
        before = COMMANDS[plan].before
        if before and group.step() is not None:
            before = before[1:]  # which makes it serve
        elif not before:
            group.clear()
        for command in before:
            group.command(command)

    def _fail(self, group: LocalGroup, fault: Fault) -> None:
        self._come_to(group, fault.plan)
        memory, served = group.memory(), group.step()
        self._refuse(group, COMMANDS[fault.plan], fault)
        states = {(worker.weights, worker.kv, worker.version) for worker in group.workers}
        if WeightState.FAULTED in {weights for weights, _, _ in states}:
            assert group.step() is None, f"{fault}: a rank is FAULTED, and the group serves"
        else:
            assert len(states) == 1, f"{fault}: one outcome for all ranks, not {states}"
        self._check_memory(group, fault)
        if served is not None and group.step() is not None:
            assert group.step() == served, f"{fault}: the group serves another version than before"
            assert self._kept(group.memory()) == self._kept(memory), f"{fault}: something else is up"
            # A rank that staged beside its loop lets go of that alone; there is nothing else to undo.
            for rank in range(self.ranks if fault.plan != str(HOT) else 0):
                begun = [name for plan, name in group.begun(rank) if plan == fault.plan]
                undone = [name for name in group.undone(rank) if name in begun]
                assert undone == begun[::-1], f"{fault}: rank {rank} began {begun} and undid {undone}"
        self._repair(group)

    def _kept(self, memory: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """Leave out what an undo cannot bring back alone: graphs whose capture needs all ranks."""
        alone = not self.plan_options(self.make_runner(0)).capture_is_collective
        return [
            {name: up for name, up in one.items() if alone or not name.endswith("graphs")} for one in memory
        ]

    def _check_memory(self, group: LocalGroup, fault: Fault) -> None:
        for worker, up in zip(group.workers, group.memory(), strict=True):
            if worker.weights is WeightState.CLEARED:
                assert not up["weights"], f"{fault}: rank {worker.rank} is CLEARED and has weights"
            if worker.kv is KVState.CLEARED:
                assert not up.get("kv_cache"), f"{fault}: rank {worker.rank} is CLEARED and has a KV cache"

    def _refuse(self, group: LocalGroup, command: Command, fault: Fault) -> None:
        failed = None
        try:
            group.command(command, fault=fault)
        except RankFailedError as error:
            failed = error
        assert failed is not None, f"{fault}: the command succeeded"
        said = failed.context
        assert (said["rank"], said["action"]) == (fault.rank, fault.action), f"{fault}: {failed}"
        assert said["cause"], f"{fault}: the error names no cause"

    def _repair(self, group: LocalGroup) -> None:
        """The next update is good; where the rank is FAULTED, after a clear."""
        if any(worker.weights is WeightState.FAULTED for worker in group.workers):
            group.clear()
        group.update(3, force=True)
        assert group.step() == "3", "the group does not serve the version of a good update"
