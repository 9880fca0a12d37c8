"""The machines of `transitions` decide: without an edge of theirs, a command that needs it is refused.

The edge is taken out of the live machine alone. Tables and joint rules are as ever, so a worker that asked
those first, and told the machine afterwards, would carry its command out.
"""

from __future__ import annotations

import functools
import inspect
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import transitions
from lone_rank import SPECS

import wsm.worker
from wsm import HOLD
from wsm.actions.base import ActionContext, Loaded
from wsm.actions.options import PlanOptions
from wsm.errors import WsmError
from wsm.states import command_events, joint
from wsm.states.machine import Edge, LifeCycle
from wsm.states.vocabulary import Tag
from wsm.strategies.tensor import WeightTarget
from wsm.testing import Fault, InMemoryRunner, LocalGroup, load_bytes
from wsm.testing._group import COMMANDS
from wsm.worker import Worker

Step = Callable[[LocalGroup], object]

WEIGHTS, KV_CACHE = {Tag.WEIGHTS}, {Tag.KV_CACHE}


def load(context: ActionContext, target: WeightTarget) -> Loaded:
    """Version 9 is what is there already: it touches no byte."""
    if context.version != "9":
        return load_bytes(context, target)
    digest = PlanOptions().resident_digest(target, context.progress)
    return Loaded(context.version, digest, "version 9", 0, len(target.specs()), "group")


def fails(plan: str, action: str, *, undo: str = "") -> Step:
    """The command of a plan, of which an action fails on the first rank."""
    return lambda group: group.command(COMMANDS[plan], fault=Fault(plan, action, undo=undo))


def fail_before_a_byte_is_touched(group: LocalGroup) -> None:
    group.update(9, tags=WEIGHTS, fault=Fault("update_in_place_only", "verify_loaded"))


def clear_until_the_other_rank_fails(group: LocalGroup) -> None:
    """The first rank is in the middle of its teardown when the group decides against the clear."""
    group.expect(Fault("clear", "release_weights", rank=1))
    with caller_of(group) as caller:
        pending = caller.begin_clear()
        first, other = group.workers
        until(group, lambda: first.weights is wsm.WeightState.CLEARING, first, other)
        until(group, lambda: "ABORT" in group.controller.status().operation, other)
        group.run(pending)


def caller_of(group: LocalGroup) -> wsm.Controller:
    """A controller that waits in a thread of its own."""
    return wsm.Controller(group.config.name, directory=group.segment.path.parent)


def until(group: LocalGroup, condition: Callable[[], bool], *workers: Worker) -> None:
    """Poll some workers, one at a time, until something is so."""
    late = time.monotonic() + 30
    while True:
        for worker in workers:
            worker.poll()
            if condition():
                return
        assert time.monotonic() < late, str(group.controller.status())


def serve(group: LocalGroup) -> None:
    group.update(1)


def clear(group: LocalGroup) -> None:
    group.clear()


def clear_weights(group: LocalGroup) -> None:
    group.clear(tags=WEIGHTS)


def clear_cache(group: LocalGroup) -> None:
    group.clear(tags=KV_CACHE)


def update_in_place(group: LocalGroup) -> None:
    group.update(2)


def update_weights(group: LocalGroup) -> None:
    group.update(2, tags=WEIGHTS)


def lose_the_other_rank(group: LocalGroup) -> None:
    group.replace(1)


def hold(group: LocalGroup) -> None:
    group.hold(owner="trainer")


def release(group: LocalGroup) -> None:
    group.release(owner="trainer")


def break_the_cache(group: LocalGroup) -> None:
    """What has a KV cache on the first rank can never give it back."""

    def release() -> int:
        raise OSError("the cache is stuck")

    group.runners[0].kv_cache.release = release


def prepare_and_abort(group: LocalGroup, version: int = 9) -> None:
    prepared_state = wsm.WeightState.PREPARED
    with caller_of(group) as caller:
        prepared = caller.begin_prepare(version, hot=False, tags=WEIGHTS)
        until(group, lambda: {each.weights for each in group.workers} == {prepared_state}, *group.workers)
        group.run(prepared.begin_abort())


#: What is done with a group of two ranks that holds nothing; a step that fails ends none of them.
SCENARIOS: tuple[tuple[Step, ...], ...] = (
    (serve, clear, clear),
    (serve, update_in_place),
    (serve, clear_weights, update_weights),
    (serve, hold, release),
    (serve, lose_the_other_rank),
    (serve, clear_cache, clear),
    (serve, clear_cache, prepare_and_abort),
    (serve, clear_cache, functools.partial(prepare_and_abort, version=2)),
    (serve, fails("clear", "release_weights"), clear),
    (serve, clear_until_the_other_rank_fails),
    (serve, clear_cache, fail_before_a_byte_is_touched),
    (serve, clear_weights, clear),
    (serve, clear_weights, fails("update_weights", "verify_loaded")),
    (serve, break_the_cache, clear_cache),
    (serve, clear_weights, break_the_cache, clear_cache),
    (fails("update", "load_weights"),),
    (fails("update_kv_cache_only", "rebuild_kv_cache", undo="rebuild_kv_cache"),),
)


def played(group: LocalGroup, scenario: tuple[Step, ...], *refusals: str) -> str:
    """Do what the scenario says, up to a refusal; return what failed in it."""
    failed = ""
    for step in scenario:
        try:
            step(group)
        except WsmError as error:
            failed += f"{error}\n"
        if any(text in failed for text in refusals):
            break
    return failed


def group_in(directory: Path | str) -> LocalGroup:
    return LocalGroup(lambda _: InMemoryRunner(SPECS), directory, load=load)


def edges_of(life: LifeCycle) -> list[tuple[str, Edge]]:
    return sorted(
        ((machine, edge) for machine, edges in life.edges().items() for edge in edges),
        key=lambda named: (named[0], *map(str, named[1])),
    )


@functools.cache
def scenarios_by_edge() -> dict[tuple[str, Edge], int]:
    """The first scenario in which the first rank takes each edge."""
    found: dict[tuple[str, Edge], int] = {}
    for number, scenario in enumerate(SCENARIOS):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, group_in(directory) as group:
            played(group, scenario)
            for record in group.workers[0].life_cycle.records:
                edge = Edge(record.source, record.event, record.dest, record.guard)
                found.setdefault((record.machine, edge), number)
    return found


def take_out(worker: Worker, machine: str, edge: Edge) -> None:
    """Take one edge out of a live machine, and out of nothing else."""
    live = next(one for one in worker._loop.life._machines.values() if one.chart.machine.value == machine)
    before = live.edges()
    ways = live._machine.events[edge.event].transitions[edge.source]
    for way in list(ways):
        names = [condition.func.__name__ for condition in way.conditions]
        if way.dest == edge.dest and (edge.guard is None or edge.guard in names):
            ways.remove(way)
    assert before - live.edges() == {edge}


EDGES = edges_of(LifeCycle())


@pytest.mark.parametrize(
    ("machine", "edge"), EDGES, ids=[f"{machine}-{'-'.join(map(str, edge))}" for machine, edge in EDGES]
)
def test_a_command_that_needs_an_edge_is_refused_by_a_machine_that_lacks_it(tmp_path, machine, edge):
    scenario = SCENARIOS[scenarios_by_edge()[machine, edge]]
    refusals = (
        f"the {machine} machine answered {edge.event!r} with a refusal",
        f"there is no way from {edge.source}",
    )
    with group_in(tmp_path) as group:
        take_out(group.workers[0], machine, edge)
        failed = played(group, scenario, *refusals)
        taken = {
            (record.machine, Edge(record.source, record.event, record.dest, record.guard))
            for record in group.workers[0].life_cycle.records
        }
    assert (machine, edge) not in taken
    assert any(text in failed for text in refusals), failed


def test_no_module_of_the_worker_asks_the_tables_what_the_machines_decide() -> None:
    for path in Path(inspect.getfile(wsm.worker)).parent.glob("*.py"):
        text = path.read_text()
        assert "joint import step" not in text, path.name
        assert "joint.step" not in text, path.name
        assert "Course" not in text, path.name


def test_a_command_is_carried_out_although_the_tables_can_be_asked_nothing(tmp_path, monkeypatch):
    def ask(*_: object, **__: object) -> object:
        raise AssertionError("the tables were asked before the machine")

    with group_in(tmp_path) as group:
        monkeypatch.setattr(joint, "step", ask)
        monkeypatch.setattr(command_events, "step", ask)
        for scenario in SCENARIOS[:3]:
            assert played(group, scenario) == ""
        assert group.step() == "2"


def test_a_serving_rank_runs_no_code_of_transitions(tmp_path):
    inside: list[str] = []

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(library):
            inside.append(frame.f_code.co_name)

    library = str(Path(inspect.getfile(transitions)).parent)
    with group_in(tmp_path) as group:
        serve(group)
        for worker in group.workers:
            assert worker.poll() is not HOLD
        sys.setprofile(watch)
        try:
            for _ in range(20):
                for worker in group.workers:
                    assert worker.poll() is not HOLD
                    with worker.step():
                        pass
            looked = group.workers[0]._turn()  # the slow path, which a change of words takes
        finally:
            sys.setprofile(None)
    assert looked is not HOLD
    assert inside == []
