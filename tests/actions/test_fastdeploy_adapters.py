"""FastDeploy's objects behind our surfaces, tried on objects that have FastDeploy's methods.

FastDeploy itself needs a GPU. The fakes have the methods that its model runner, proposer, buffer
manager and routing replay manager have, and fail where the real ones are known to fail.
"""

from __future__ import annotations

import numpy as np
import pytest

from wsm.actions.backends.fastdeploy import FastDeployGraphs, FastDeployRequests, FastDeployRunner
from wsm.actions.backends.paddle_groups import DeviceGroups
from wsm.actions.backends.paddle_memory import DeviceMemory
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind, Runner
from wsm.errors import BadInputError, RefusedError
from wsm.states.vocabulary import InFlightPolicy


class FakeFlags:
    """A paddle tensor of flags, as far as ``numpy()`` and slice assignment go."""

    def __init__(self, values):
        self._values = np.array(values, dtype=bool).reshape(-1, 1)

    def numpy(self):
        return self._values

    def __setitem__(self, index, value):
        self._values[index] = value


class FakeTensor:
    """What a paddle tensor of bytes tells about its size; it has no ``nbytes``."""

    def __init__(self, extent):
        self.shape = [extent]

    def element_size(self):
        return 1


class FakeShareInputs:
    """FastDeploy's input batch: items, ``in``, and ``reset``."""

    def __init__(self, calls, name, **items):
        self._calls = calls
        self._name = name
        self._items = items

    def __contains__(self, key):
        return key in self._items

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def reset(self):
        self._calls.append(f"{self._name}.reset")


class FakeModel:
    def __init__(self, calls, name):
        self._calls = calls
        self._name = name

    def clear_graph_opt_backend(self):
        self._calls.append(f"{self._name}.clear_graph_opt_backend")


class FakeProposer:
    def __init__(self, calls):
        self._calls = calls
        self.model = FakeModel(calls, "mtp")
        self.model_inputs = FakeShareInputs(calls, "mtp", caches=[FakeTensor(64)])

    def clear_mtp_cache(self):
        self._calls.append("clear_mtp_cache")
        del self.model_inputs["caches"]

    def initialize_kv_cache(self, main_model_num_blocks):
        self._calls.append(f"mtp.initialize_kv_cache({main_model_num_blocks})")
        self.model_inputs["caches"] = [FakeTensor(64)]


class FakeRoutingReplay:
    def __init__(self, calls):
        self._calls = calls

    def clear_all_request(self):
        self._calls.append("clear_all_request")

    def update_suspend_routing_replay(self):
        self._calls.append("update_suspend_routing_replay")


class FakeModelRunner:
    num_gpu_blocks = 12
    use_cudagraph = True

    def __init__(self, calls):
        self._calls = calls
        self.model = FakeModel(calls, "main")
        self.proposer = FakeProposer(calls)
        self.routing_replay_manager = FakeRoutingReplay(calls)
        self.share_inputs = FakeShareInputs(
            calls, "main", stop_flags=FakeFlags([False, True, False]), caches=[FakeTensor(256)]
        )

    def clear_requests(self):
        self._calls.append("clear_requests")

    def clear_cache(self):
        self._calls.append("clear_cache")
        del self.share_inputs["caches"]

    def initialize_kv_cache(self):
        self._calls.append("initialize_kv_cache")
        self.share_inputs["caches"] = [FakeTensor(256)]

    def capture_model(self):
        self._calls.append("capture_model")


@pytest.fixture
def calls(runner):
    return runner.calls


@pytest.fixture
def fitted(calls, runner):
    """FastDeploy's objects fitted to our surfaces, over in-memory weights."""
    groups = runner.groups

    class FakeBufferManager:
        @classmethod
        def clear_buffer(cls):
            calls.append("DeepEPBufferManager.clear_buffer")

        @classmethod
        def recreate_buffer(cls):
            calls.append("DeepEPBufferManager.recreate_buffer")

    return FastDeployRunner(
        FakeModelRunner(calls),
        weights=runner.weights,
        memory=runner.memory,
        groups=groups,
        deepep_buffers=FakeBufferManager,
        pause=lambda: calls.append("pause"),
        resume=lambda: calls.append("resume"),
        forget_prefixes=lambda: calls.append("forget_prefixes"),
    )


@pytest.fixture
def plans(fitted):
    return derive_plans(PlanOptions.from_runner(fitted, shut_down_groups=True))


def test_the_fitted_runner_is_a_runner(fitted):
    assert isinstance(fitted, Runner)


def test_plans_promise_no_policy_that_fastdeploys_scheduler_cannot_honour(fitted):
    assert PlanOptions.from_runner(fitted).in_flight_policies == {InFlightPolicy.ABORT, InFlightPolicy.DRAIN}
    with pytest.raises(BadInputError, match="keep needs requests"):
        PlanOptions.from_runner(fitted, in_flight_policies=frozenset(InFlightPolicy))


def test_clear_makes_fastdeploys_own_calls_in_the_order_that_it_learnt(
    fitted, plans, calls, make_context, walk
):
    walk(plans.clear, make_context(runner=fitted))
    made = [call for call in calls if call not in ("pause", "memory.empty_cache")]
    assert made == [
        "clear_requests",
        "clear_all_request",
        "main.clear_graph_opt_backend",
        "mtp.clear_graph_opt_backend",
        "DeepEPBufferManager.clear_buffer",
        "weights.release",
        "clear_mtp_cache",
        "clear_cache",
        "forget_prefixes",
        "ep.shut_down",
        "tp.shut_down",
        "world.shut_down",
    ]


def test_update_makes_fastdeploys_own_calls_and_resumes_after_the_commit(
    fitted, plans, calls, make_context, walk
):
    walk(plans.clear, make_context(runner=fitted))
    calls.clear()
    context = make_context(runner=fitted, from_normal=False)
    walk(plans.update, context)
    assert calls == [
        "pause",
        "world.restart",
        "tp.restart",
        "ep.restart",
        "DeepEPBufferManager.recreate_buffer",
        "main.reset",
        "mtp.reset",
        "mtp.initialize_kv_cache(12)",
        "initialize_kv_cache",
        "capture_model",
        "update_suspend_routing_replay",
    ]
    for action in plans.update.commit:
        action.run(context)
    assert calls[-1] == "resume"


def test_clear_twice_calls_nothing_that_fails_the_second_time(fitted, plans, calls, make_context, walk):
    walk(plans.clear, make_context(runner=fitted))
    calls.clear()
    walk(plans.clear, make_context(runner=fitted, from_normal=False))
    assert "clear_cache" not in calls
    assert "clear_mtp_cache" not in calls
    assert "DeepEPBufferManager.clear_buffer" not in calls


def test_live_requests_are_counted_by_their_stop_flags(fitted):
    assert fitted.requests.in_flight() == 2
    assert fitted.requests.abort_all() == 2
    assert fitted.requests.in_flight() == 0


def test_a_build_without_a_needed_call_is_refused_before_anything_begins(calls):
    lacking = FakeModelRunner(calls)
    lacking.share_inputs = {"stop_flags": FakeFlags([True])}
    with pytest.raises(BadInputError, match="reset or reset_share_inputs"):
        FastDeployRequests(lacking, pause=lambda: None, resume=lambda: None)


def test_the_older_spelling_of_a_call_is_found():
    class FakeOldModel:
        cleared = 0

        def clear_grpah_opt_backend(self):
            self.cleared += 1

    model = FakeOldModel()
    graphs = FastDeployGraphs(model, capture=None)
    graphs.drop()
    graphs.drop()
    assert model.cleared == 1
    assert not graphs.captured()


def test_a_runner_without_mtp_graphs_or_replay_has_none(calls, runner):
    model_runner = FakeModelRunner(calls)
    model_runner.proposer = object()
    model_runner.routing_replay_manager = None
    model_runner.use_cudagraph = False
    fitted = FastDeployRunner(
        model_runner,
        weights=runner.weights,
        memory=runner.memory,
        pause=list,
        resume=list,
        forget_prefixes=list,
    )
    assert (fitted.graphs, fitted.deepep, fitted.routing_replay, fitted.groups) == (None, None, None, None)
    assert fitted.auxiliaries == []


# -- groups and memory of a device ------------------------------------------------------------------


class FakeProcessGroup:
    def shutdown(self):
        """Exist, as NCCL's does."""


class FakeGroup:
    def __init__(self, process_group):
        self.process_group = process_group


class FakeDistributed:
    def __init__(self):
        self.calls = []

    def barrier(self, group):
        self.calls.append("barrier")

    def shutdown_process_group(self, group):
        self.calls.append("shutdown")

    def restart_process_group(self, group):
        self.calls.append("restart")


def test_device_groups_go_down_and_come_up_once_each():
    distributed = FakeDistributed()
    groups = DeviceGroups({GroupKind.TP: FakeGroup(FakeProcessGroup())}, distributed)
    groups.barrier(GroupKind.TP)
    groups.shut_down(GroupKind.TP)
    groups.shut_down(GroupKind.TP)
    assert groups.group(GroupKind.TP) is None
    with pytest.raises(RefusedError):
        groups.barrier(GroupKind.TP)
    groups.restart(GroupKind.TP, incarnation="a")
    groups.restart(GroupKind.TP, incarnation="a")
    assert distributed.calls == ["barrier", "shutdown", "restart"]
    assert groups.alive(GroupKind.TP)


def test_a_group_without_shutdown_is_refused_before_a_clear_begins():
    with pytest.raises(BadInputError, match="Gloo"):
        DeviceGroups({GroupKind.TP: FakeGroup(object())}, FakeDistributed())


def test_a_paddle_without_the_calls_is_refused():
    with pytest.raises(BadInputError, match="shutdown_process_group"):
        DeviceGroups({}, type("FakeOldDistributed", (), {"barrier": None}))


def test_device_memory_is_what_the_allocator_has_taken():
    class FakeCuda:
        reserved = 512

        def memory_reserved(self):
            return self.reserved

        def empty_cache(self):
            self.reserved = 0

    memory = DeviceMemory(FakeCuda())
    assert memory.resident_bytes() == 512
    memory.empty_cache()
    assert memory.resident_bytes() == 0
    with pytest.raises(BadInputError):
        DeviceMemory(object())
