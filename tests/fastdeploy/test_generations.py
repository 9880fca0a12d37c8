"""Which model runners are known, and what a build lacks: said at start, by the call's name."""

from __future__ import annotations

from types import SimpleNamespace

import model_runners as runners
import pytest
from loop_rank import SPECS, feeds

from tests.raising import raising
from wsm.actions.base import ActionContext
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.fastdeploy._configuration import WorkerFacts
from wsm.fastdeploy._runner_surfaces import WorkerSurfaces, examine
from wsm.states.vocabulary import InFlightPolicy
from wsm.testing import InMemoryRunner


def facts(**more) -> WorkerFacts:
    known = {
        "options": {},
        "port": "8000",
        "tensor_parallel_rank": 0,
        "tensor_parallel_size": 1,
        "expert_parallel": False,
        "graphs": False,
        "drafts": False,
    }
    return WorkerFacts(**{**known, **more})


def bound(runner, tmp_path, *, deepep_buffers=None, groups=None, **more) -> WorkerSurfaces:
    engine = InMemoryRunner(SPECS)
    surfaces = WorkerSurfaces(
        facts(**more),
        weights=engine.weights,
        memory=engine.memory,
        groups=groups,
        deepep_buffers=deepep_buffers,
        directory=tmp_path,
    )
    surfaces.bind(runner)
    return surfaces


@pytest.fixture
def walked(tmp_path):
    """``walked(plan)``: what a plan of a runner of 2026 that has everything calls of it, in order."""
    runner = runners.Runner2026()
    runner.initialize_routing_replay_manager()
    runners.Buffers.calls = runner.calls
    every = {"graphs": True, "drafts": True, "routing_replay": True, "expert_parallel": True}
    surfaces = bound(
        runner, tmp_path, deepep_buffers=runners.Buffers, groups=runners.Groups(runner.calls), **every
    )
    options = PlanOptions.from_runner(surfaces, shut_down_groups=True)
    assert options.in_flight_policies == {InFlightPolicy.ABORT, InFlightPolicy.DRAIN}
    plans = derive_plans(options)

    def walk(plan: str, *, from_normal: bool = True) -> list[str]:
        runner.calls.clear()
        context = ActionContext(
            surfaces, 0, 2, epoch=1, sequence=1, version="2", from_normal=from_normal, load=feeds
        )
        for action in plans.named(plan).actions:
            action.precondition(context)
            action.run(context)
            action.probe(context)
        return list(runner.calls)

    return walk


def lacks(runner, name: str):
    """Return the runner with one call that is not there."""
    setattr(runner, name, None)
    return runner


KNOWN = [
    (runners.HpuRunner, "the HPU runner of December 2025"),
    (runners.Runner2025, "the fork of December 2025"),
    (runners.GcuRunner, "the fork of December 2025"),
    (runners.Runner2026, "the weight manager of 2026"),
    (runners.RunnerV1, "model runner v1"),
]


@pytest.mark.parametrize(("runner", "name"), KNOWN)
def test_the_generation_is_read_off_the_objects(runner, name):
    assert examine(runner(), facts()).name == name


@pytest.mark.parametrize(
    ("runner", "missing", "more"),
    [
        (lacks(runners.Runner2025(), "clear_requests"), "clear_requests", {}),
        (lacks(runners.Runner2026(), "clear_cache"), "clear_cache", {}),
        (lacks(runners.RunnerV1(), "initialize_kv_cache"), "initialize_kv_cache", {}),
        (lacks(runners.Runner2025(), "capture_model"), "capture_model", {"graphs": True}),
        (runners.Runner2025(), "clear_mtp_cache", {"drafts": True}),
        (runners.RunnerV1(), "clear_mtp_cache", {"drafts": True}),
        (runners.RunnerV1(), "initialize_routing_replay_manager", {"routing_replay": True}),
    ],
)
def test_what_a_configuration_needs_and_the_build_lacks_is_named(runner, missing, more):
    with raising("call-missing", match=missing):
        examine(runner, facts(**more))


def test_a_runner_that_does_not_say_where_its_requests_are_is_refused_before_the_first_command(tmp_path):
    runner = runners.Runner2025()
    del runner.share_inputs["stop_flags"]
    with raising("call-missing", match="stop_flags"):
        bound(runner, tmp_path)


def test_a_runner_of_another_kind_is_refused():
    with raising("unknown-generation", match="model runner v1"):
        examine(SimpleNamespace(), facts())


def test_a_runner_that_only_boots_is_refused_where_a_change_is_asked(tmp_path):
    with raising("boots-only", match="HpuRunner"):
        bound(runners.HpuRunner(), tmp_path)


@pytest.mark.parametrize("runner", [runners.Runner2025, runners.GcuRunner, runners.Runner2026])
def test_running_slots_are_those_whose_flag_is_down(tmp_path, runner):
    runner = runner()
    requests = bound(runner, tmp_path).requests
    runner.share_inputs["stop_flags"].values[:3] = False
    assert (requests.in_flight(), requests.abort_all(), requests.in_flight()) == (3, 3, 0)


def test_running_slots_of_runner_v1_are_those_with_tokens_which_its_clear_requests_leaves(tmp_path):
    runner = runners.RunnerV1()
    requests = bound(runner, tmp_path).requests
    runner.request_state.num_tokens_per_seq[1:3] = (7, 1)
    assert (requests.in_flight(), requests.abort_all(), requests.in_flight()) == (2, 2, 0)
    assert "clear_requests" in runner.calls
    requests.reset_inputs()


@pytest.mark.parametrize("runner", [runners.Runner2025, runners.Runner2026, runners.RunnerV1])
def test_no_tensor_of_a_released_cache_is_held_by_whom_it_is_released(tmp_path, runner):
    runner = runner()
    runner.initialize_kv_cache()
    cache = bound(runner, tmp_path).kv_cache
    for release in (cache.release, runner.clear_cache):
        assert cache.allocated_bytes() == 128
        release()
        assert cache.allocated_bytes() == 0
        assert not getattr(runner, "caches", None)
        count = runner.calls.count("clear_cache")
        cache.release()
        assert runner.calls.count("clear_cache") == count
        cache.rebuild()
    runner.clear_cache()
    runner.initialize_kv_cache()
    assert cache.rebuild() == 128
    assert runner.calls.count("initialize_kv_cache") == 4


def test_graphs_and_the_proposers_cache_follow_what_fastdeploy_itself_calls(tmp_path):
    runner = runners.Runner2026()
    surfaces = bound(runner, tmp_path, graphs=True, drafts=True)
    (draft,) = surfaces.auxiliaries
    runner.proposer.clear_mtp_cache()
    draft.kv_cache.release()
    assert draft.kv_cache.rebuild() == 128
    runner.model.clear_grpah_opt_backend()
    assert (surfaces.graphs.captured(), draft.graphs.captured()) == (False, True)
    draft.graphs.drop()
    runner.capture_model()
    assert (surfaces.graphs.captured(), draft.graphs.captured()) == (True, True)
    surfaces.graphs.capture()
    assert runner.calls.count("capture_model") == 1
    assert "mtp.initialize_kv_cache 4" in runner.calls


def test_a_clear_and_an_update_make_fastdeploys_own_calls_in_the_order_that_it_learnt(walked):
    assert walked("clear") == [
        "clear_requests",
        "clear_all_request",
        "clear_grpah_opt_backend",
        "clear_grpah_opt_backend",
        "clear_buffer",
        "clear_mtp_cache",
        "clear_cache",
        "shut down ep",
        "shut down tp",
        "shut down world",
    ]
    assert walked("update", from_normal=False) == [
        "restart world",
        "restart tp",
        "restart ep",
        "recreate_buffer",
        "reset_share_inputs",
        "reset_model_inputs",
        "mtp.initialize_kv_cache 4",
        "initialize_kv_cache",
        "capture_model",
    ]
