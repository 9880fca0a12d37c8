"""What every engine must pass: each of its actions fails at each boundary, and the group has one outcome.

A class for pytest, which nothing here imports: a test module derives from it and says how its engine is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from wsm.actions.base import ActionContext, Loaded
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner, StageableWeights
from wsm.controller.errors import RankFailedError
from wsm.states.plan_key import HOT
from wsm.states.vocabulary import KVState, WeightState
from wsm.strategies.tensor import WeightTarget
from wsm.testing._faults import BEHIND_A_DECISION, Fault
from wsm.testing._group import COMMANDS, Command, LocalGroup, load_bytes
from wsm.worker import HOLD
from wsm.worker.errors import FlipFailedError


class Metafunc(Protocol):
    """What is used of pytest's own."""

    fixturenames: Sequence[str]

    def parametrize(self, argnames: str, argvalues: Sequence[object], *, ids: Sequence[str]) -> None:
        """Run a test once for each value."""
        ...


class RunnerContract(ABC):
    """The contract of an engine with wsm; derive from it, and pytest runs it.

    Each rank's engine is made by :meth:`make_runner`; all ranks live in one thread, each test has a group of
    its own. A surface that waits for its peers inside a call needs ``ranks = 1``.

    Attributes
    ----------
    ranks : int
        Ranks of the group; the last one fails.
    plans : sequence of str
        The printed names of the plans whose actions are made to fail.
    ways : sequence of str
        How (:data:`wsm.testing.WAYS`).
    configuration : mapping
        Other options of :class:`wsm.WsmConfig`.
    """

    ranks: int = 2
    plans: Sequence[str] = tuple(COMMANDS)
    ways: Sequence[str] = ("raises", "is not done", "outlasts its deadline")
    configuration: Mapping[str, Any] = {}

    @abstractmethod
    def make_runner(self, rank: int) -> BareRunner:
        """Return a new engine that holds no weights and no KV cache."""

    def plan_options(self, runner: BareRunner) -> PlanOptions:
        """Return what plans are derived from; by default, what the runner's surfaces say."""
        return PlanOptions.from_runner(runner)

    def load(self, context: ActionContext, target: WeightTarget) -> Loaded | Mapping[str, Any]:
        """Load a version; by default every byte of version v is v."""
        return load_bytes(context, target)

    def make_group(self, directory: Path) -> LocalGroup:
        """Return a group of these engines."""
        return LocalGroup(
            self.make_runner,
            directory,
            ranks=self.ranks,
            load=self.load,
            plan_options=self.plan_options,
            configuration=self.configuration,
        )

    def pytest_generate_tests(self, metafunc: Metafunc) -> None:
        """Make one test of each action of each plan."""
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
