"""The methods of FastDeploy's weight manager that its runners and tests call, over paddle's parameters.

The situations are those of FastDeploy's own tests, in a version of our own: one process, one rank, real
files, a real word and real parameters. ``DeepEPBufferManager`` and CUDA's handles are stand-ins.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import numpy as np
import paddle
import pytest
from model_runners import Buffers
from one_rank_worker import CLEARED, CLEARING, NORMAL, UPDATING, OneRank, OneRankRunner, WordView

from tests.raising import raising
from wsm import log
from wsm.controller import Controller
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.errors import GroupError
from wsm.fastdeploy import DynamicWeightManager, _install
from wsm.fastdeploy._calls import Fragment
from wsm.fastdeploy._entries import Came
from wsm.fastdeploy.errors import as_fastdeploys
from wsm.http import Commands, create_app
from wsm.http.surfaces import SURFACES, SurfaceOptions
from wsm.strategies import TensorSpec
from wsm.strategies import errors as strategy_errors

pytestmark = [pytest.mark.paddle, pytest.mark.needs("libatomic")]


class Job(OneRank):
    """A worker on the second of two devices, and the files of its trainer."""

    def model(self) -> paddle.nn.Layer:
        with paddle.LazyGuard():
            return paddle.nn.Linear(4, 2)

    def saves(self, name: str, value: float, *, parameters=("weight", "bias")) -> None:
        shapes = {"weight": (4, 2), "bias": (2,), "more": (3,)}
        state = {each: paddle.full(shapes[each], value, dtype="float32") for each in parameters}
        paddle.save(state, str(self.model_directory / name), safetensors=True)

    def manager(
        self, models=None, *, experts: bool = False, tp_rank: int = 0, group=None, shuts_down=False, **said
    ):
        nccl = SimpleNamespace(ranks=[0], process_group=SimpleNamespace(shutdown=None))
        config = self.config(
            tensor_parallel_rank=tp_rank,
            tensor_parallel_size=1 if group is None else 2,
            enable_expert_parallel=experts,
            expert_parallel_size=1,
            tp_group=group,
            ep_group=nccl,
            shutdown_comm_group_if_worker_idle=shuts_down,
            **said,
        )
        return self.make(config, models or self.model())


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Job(tmp_path, monkeypatch, visible="4,5")
    monkeypatch.setenv("FLAGS_selected_gpus", "1")
    yield made
    made.close()


@pytest.fixture
def manager(job):
    """One that has loaded FastDeploy's plain file, which says no version."""
    job.saves("model_state.tp0.5.pdparams", 1.0)
    return job.manager()


def values(manager) -> dict[str, float]:
    return {name: float(tensor.mean()) for name, tensor in manager.state_dict.items()}


def test_a_start_without_files_says_where_it_looked(job):
    with raising("no-boot", match=r"model_state\.tp0\.5\.pdparams"):
        job.manager()
    assert DynamicWeightManager.present is None
    assert not list(job.directory.glob("wsm.*"))


def test_several_models_are_one_state_and_one_model_is_a_list(job):
    job.saves("model_state.tp0.5.pdparams", 1.0)
    one = job.model()
    manager = job.manager(one)
    assert manager.model_list == [one]
    assert (manager.rank, manager.nranks, manager.meta_src_id, manager.first_load) == (0, 1, 5, False)
    assert manager.ipc_path == "/shared_ipc_meta/ipc_metas_5"
    manager.close()
    with paddle.LazyGuard():
        draft = paddle.nn.Sequential(("draft", paddle.nn.Linear(3, 1, bias_attr=False)))
    state = {
        "weight": paddle.full([4, 2], 1.0),
        "bias": paddle.full([2], 2.0),
        "draft.weight": paddle.full([3, 1], 3.0),
    }
    paddle.save(state, str(job.model_directory / "model_state.tp0.5.pdparams"), safetensors=True)
    assert values(job.manager([job.model(), draft])) == {"weight": 1.0, "bias": 2.0, "draft.weight": 3.0}


def test_the_devices_number_is_read_off_the_environment(manager, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("FLAGS_selected_gpus", "2")
    assert manager._get_gpu_id() == 6


def test_a_device_without_a_number_is_refused_by_name_where_files_carry_it(job, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a1e")
    with raising(strategy_errors.bad_device_id):
        job.manager()
    assert not list(job.directory.glob("wsm.*"))


def test_a_way_that_needs_no_device_starts_where_the_device_has_no_number(job, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a1e")
    monkeypatch.setenv("FLAGS_selected_gpus", "0")
    with raising("no-boot", match=r"version\.yaml"):  # so it has come as far as the load
        job.manager(strategy="rsync")


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("wrong", "fastdeploys", "own"),
    [
        ("gone", FileNotFoundError, CommandRefusedError),
        ("float64", TypeError, RankFailedError),
        ("shape", ValueError, RankFailedError),
        ("parameter", ValueError, RankFailedError),
    ],
)
def test_what_fails_is_of_fastdeploys_type_too_at_start_and_in_a_call(job, wrong, fastdeploys, own):
    path = job.model_directory / "model_state.tp0.5.pdparams"
    job.saves(path.name, 1.0)
    manager = job.manager()
    state = {"weight": paddle.zeros([4, 2]), "bias": paddle.zeros([2])}
    path.unlink()
    if wrong == "float64":
        state["bias"] = state["bias"].astype(wrong)
    elif wrong == "shape":
        state["bias"] = paddle.zeros([3])
    elif wrong == "parameter":
        del state["bias"]
    if wrong != "gone":
        paddle.save(state, str(path), safetensors=True)
    with pytest.raises(fastdeploys) as caught:
        manager.update_parameters()
    assert isinstance(caught.value, own)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert isinstance(again, fastdeploys)
    assert (str(again), again.code, again.context) == (
        str(caught.value),
        caught.value.code,
        caught.value.context,
    )
    manager.close()
    with pytest.raises(fastdeploys) as caught:
        job.manager()
    assert caught.value.code == "no-boot"


def test_a_rank_that_is_told_what_became_of_a_command_raises_the_same_type():
    found, model = TensorSpec("w", "F64", (1,)), TensorSpec("w", "F32", (1,))
    with raising("dtype-mismatch") as caught:
        strategy_errors.check_kinds([(found, model, "a file")])
    mismatch = caught.value
    told = Came(*json.loads(json.dumps(Came.to(mismatch))))
    with pytest.raises(TypeError, match="F64"):
        raise as_fastdeploys(GroupError(told.failure, code="call-failed"), told.cause)


def test_an_unknown_way_is_a_value_error_and_all_else_a_runtime_error(job, manager, monkeypatch):
    with pytest.raises(RuntimeError) as caught:
        manager.update_weights_by_rdma("2", transfer_mode="gdr")
    assert caught.value.code == "command-refused"
    manager.close()
    with pytest.raises(ValueError, match="'meta', which brings no weights"):
        job.manager(strategy="meta")


def test_tensors_that_match_pass_and_others_are_named(manager):
    here = paddle.zeros([2, 3])
    manager._validate_parameter_match("w", paddle.ones([2, 3]), here)
    with pytest.raises(TypeError, match="for w"):
        manager._validate_parameter_match("w", paddle.ones([2, 3], dtype="float64"), here)
    with pytest.raises(ValueError, match="for w"):
        manager._validate_parameter_match("w", paddle.ones([3, 2]), here)


def test_a_state_is_shared_where_strides_are_equal_and_copied_where_not(manager):
    weight, bias = paddle.full([4, 2], 5.0), paddle.full([2], 6.0)
    with pytest.raises(ValueError, match="No parameter"):
        manager._update_model_from_state({}, "raw")
    manager._update_model_from_state({"weight": weight, "unknown": bias}, "raw")
    assert manager.state_dict["weight"].data_ptr() == weight.data_ptr()
    assert values(manager) == {"weight": 5.0, "bias": 1.0}
    with pytest.raises(TypeError, match="weight"):
        manager._update_model_from_state({"weight": weight.astype("float64")}, "raw")
    strided = paddle.arange(8, dtype="float32").reshape([2, 4]).t()
    held = manager.state_dict["weight"]
    manager._update_model_from_state({"weight": strided}, "raw")
    assert held.numpy().tolist() == strided.numpy().tolist()
    held._clear_data()
    manager._update_model_from_state({"weight": strided}, "raw")
    assert held.numpy().tolist() == strided.numpy().tolist()
    assert held.is_contiguous()


def test_parameters_are_verified_after_an_update_and_after_a_clear(manager):
    manager._verify_parameters("update")
    with pytest.raises(RuntimeError, match=r"clearance verification failed: 2 .* the first is weight"):
        manager._verify_parameters("clearance")
    for clear in (lambda: manager.clear_parameters(0), manager.clear_model_weight):
        clear()  # each parameter goes once, and is gone
        manager._verify_parameters("clearance")
    with pytest.raises(RuntimeError, match="update verification failed: 2"):
        manager._verify_parameters("update")


def test_a_state_that_is_set_is_what_the_methods_called_one_by_one_look_at():
    """FastDeploy's own tests make half a manager, and give it a state."""
    half = DynamicWeightManager.__new__(DynamicWeightManager)
    half.state_dict = {"w": paddle.zeros([2])}
    half._verify_parameters("update")
    half._update_model_from_state({"w": paddle.full([2], 4.0)}, "snapshot")
    assert values(half) == {"w": 4.0}
    with pytest.raises(RuntimeError, match="clearance verification failed"):
        half._verify_parameters("clearance")


@pytest.mark.parametrize("name", ["_update_ipc_snapshot", "_update_ipc", "reload_model_weights"])
def test_the_names_of_fastdeploys_ways_load_by_the_configured_one(job, manager, name):
    job.saves("model_state.tp0.5.pdparams", 6.0)
    getattr(manager, name)()
    assert values(manager) == {"weight": 6.0, "bias": 6.0}


def test_one_line_tells_what_the_allocator_holds_and_held_at_most(manager, caplog):
    manager._log_memory("after clear")
    (line,) = [each for each in caplog.records if "device.memory" in each.getMessage()]
    for figure in ("max_allocated", "max_reserved", "current_allocated", "current_reserved", "after clear"):
        assert figure in line.getMessage()


def test_the_status_of_a_worker_that_has_just_started_asks_for_nothing(manager, job):
    with Controller(manager.group_name, directory=job.directory) as controller:
        status = controller.status()
        assert "its engine has built KV cache and graphs itself" in status.because
        assert status.advice == ()
        job.word.store(UPDATING)
        manager.check_model_weights_status(WordView(job.word), OneRankRunner(), job.port)
        assert "serves version" in controller.status().sentence()


def test_its_server_calls_a_worker_healthy_that_has_just_started(manager, job):
    """Its engine answers 200 by then, and a balancer would take it out."""
    commands = Commands(manager.group_name, directory=job.directory)
    app = create_app(commands, surfaces=[SURFACES["fastdeploy"](SurfaceOptions())])

    async def health() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/health")).status_code

    assert asyncio.run(health()) == 200
    job.enter(manager, CLEARING, OneRankRunner())
    assert asyncio.run(health()) == 304
    job.enter(manager, UPDATING, OneRankRunner())
    assert asyncio.run(health()) == 200
    commands.close()


def test_the_word_is_written_by_the_first_rank_of_a_part_alone(job):
    job.saves("model_state.tp0.5.pdparams", 1.0)
    manager = job.manager(tp_rank=1)
    assert job.word.read() == NORMAL
    manager._update_shared_status(job.port, CLEARED)
    assert job.word.read() == NORMAL
    manager.close()
    manager = job.manager()
    assert job.word.read() == NORMAL  # the first load writes none
    manager._update_shared_status(job.port, UPDATING)
    assert job.word.read() == UPDATING
    manager.finalize_update()  # the word is that of the engine worker queue's port, with a pid and without
    assert job.word.read() == NORMAL


@pytest.mark.parametrize(("text", "version"), [("step: global_step_7\n", "global_step_7"), (None, None)])
def test_the_version_file_is_read_and_what_it_lacks_is_no_version(job, manager, text, version, caplog):
    path = job.model_directory / "version.yaml"
    if text is not None:
        path.write_text(text)
    assert manager.read_model_version_from_file() == version
    assert (version is None) == (log.COMMAND_FAILED in caplog.text)


def test_handles_of_cuda_are_opened_as_bytes_on_this_process_own_device(manager, monkeypatch):
    opened = []

    class Dense:
        @staticmethod
        def _new_shared_cuda(fields):
            opened.append(fields)
            return np.zeros(2, dtype=np.float32)

    monkeypatch.setattr(paddle.base.core, "LoDTensor", Dense, raising=False)
    metas = {"a": ["\x80\xff", 512, 8, 5, [2], [], 0], "b": (b"\x01", 0, 8, 5, [2], [], 3)}
    converted = manager._convert_ipc_meta_to_tensor(metas)
    assert [tuple(tensor.shape) for tensor in converted.values()] == [(2,), (2,)]
    assert opened == [(b"\x80\xff", 512, 8, 5, [2], [], 1), (b"\x01", 0, 8, 5, [2], [], 1)]
    manager._update_model_from_state({"bias": converted["a"]}, "raw")
    assert values(manager)["bias"] == 0.0


@pytest.fixture
def buffers(monkeypatch):
    """FastDeploy's module with the exchange buffer, which needs DeepEP."""
    Buffers.calls = []
    module = ModuleType("fastdeploy.model_executor.layers.moe.ep")
    module.DeepEPBufferManager = Buffers
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(paddle.distributed, "barrier", lambda _group: None)  # the group is none of paddle's
    return Buffers


def test_the_exchange_buffer_is_cleared_and_made_anew_where_experts_are_spread(job, buffers):
    job.saves("model_state.tp0.5.pdparams", 1.0)
    manager = job.manager(experts=True)
    assert buffers.calls == []  # the start leaves what the model has made
    manager.clear_deepep_buffer()
    manager.recreate_deepep_buffer()
    assert buffers.calls == ["clear_buffer", "recreate_buffer"]
    manager.clear_parameters(job.port)
    assert buffers.calls[2:] == ["clear_buffer"]
    manager.update_parameters(job.port)
    assert buffers.calls[3:] == ["recreate_buffer"]


def test_without_spread_experts_and_groups_that_go_the_single_units_do_nothing(manager, buffers):
    manager.clear_deepep_buffer()
    manager.recreate_deepep_buffer()
    manager.clear_communication_group()
    manager.restart_communication_group()
    assert buffers.calls == []
    assert values(manager) == {"weight": 1.0, "bias": 1.0}


@pytest.fixture
def groups(job, buffers, monkeypatch):
    """A TP group and an EP group, as NCCL's; what is done to them is in the list with the buffer's calls."""
    tensor_parallel = SimpleNamespace(ranks=[0], process_group=SimpleNamespace(shutdown=None))

    def recorded(call):
        def record(group):
            buffers.calls.append(f"{call} {'tp' if group is tensor_parallel else 'ep'}")

        return record

    for call in ("shutdown", "restart"):
        monkeypatch.setattr(paddle.distributed, f"{call}_process_group", recorded(call))
    return tensor_parallel


def test_groups_that_go_are_shut_down_once_and_back_before_the_buffer(job, buffers, groups):
    """FastDeploy's call without a group, for all of paddle's but its world, has nothing left to do here."""
    job.saves("model_state.tp0.5.pdparams", 1.0)
    manager = job.manager(experts=True, group=groups, shuts_down=True)
    assert buffers.calls == []
    for _ in "ab":
        manager.clear_communication_group()
    assert buffers.calls == ["shutdown ep", "shutdown tp"]
    for _ in "ab":
        manager.restart_communication_group()
    assert buffers.calls[2:] == ["restart tp", "restart ep"]
    del buffers.calls[:]
    runner = OneRankRunner()
    job.enter(manager, CLEARING, runner)
    assert buffers.calls == ["clear_buffer", "shutdown ep", "shutdown tp"]
    job.enter(manager, UPDATING, runner)
    assert buffers.calls[3:] == ["restart tp", "restart ep", "recreate_buffer"]


def test_a_group_that_cannot_be_shut_down_is_named_at_the_start_where_it_is_to_go(job, groups):
    """FastDeploy finds out in the middle of a clear."""
    job.saves("model_state.tp0.5.pdparams", 1.0)
    gloo = SimpleNamespace(ranks=[0], process_group=SimpleNamespace())
    with raising("call-missing", match="the tp group"):
        job.manager(group=gloo, shuts_down=True)
    assert not list(job.directory.glob("wsm.*"))
    assert values(job.manager(group=gloo)) == {"weight": 1.0, "bias": 1.0}


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "how",
    [
        lambda runner: ((None, runner), {"pid": 0, "block": True}),
        lambda runner: ((), {"kv_cache_status": None, "model_runner": runner, "pid": 0, "block": True}),
        lambda runner: ((runner,), {"pid": 0}),
        lambda runner: ((), {"pid": 0, "model_runner": runner}),
    ],
)
def test_the_check_of_the_loop_takes_fastdeploys_arguments_by_name(job, manager, how):
    job.word.store(UPDATING)
    placed, named = how(runner := OneRankRunner())
    manager.check_model_weights_status(WordView(job.word), *placed, **named)
    assert (job.word.read(), runner.calls) == (NORMAL, ["clear_requests"])


@pytest.mark.parametrize(
    ("placed", "named"),
    [((), {}), ((1, 2, 3, 4, 5), {}), ((1, 2), {"pid": 0, "model_runner": 3}), ((1, 2), {"blok": True})],
)
def test_the_check_of_the_loop_refuses_arguments_of_no_generation(manager, placed, named):
    with raising("unknown-call", match="kv_cache_status, model_runner, pid, block"):
        manager.check_model_weights_status(None, *placed, **named)


def test_the_fragments_that_runbooks_look_for_stand_in_the_log_in_fastdeploys_order(job, caplog):
    """Each at info, with what of FastDeploy writes it; those of a load that came to nothing are not said."""
    caplog.set_level("INFO", "wsm")
    written_by = {}

    def said() -> list[str]:
        records = [record for record in caplog.records if hasattr(record, "wsm_fields")]
        caplog.clear()
        fields = [each.wsm_fields for each in records if each.wsm_fields["event"] == "fastdeploy.says"]
        assert all(each.levelname == "INFO" for each in records if each.wsm_fields in fields)
        written_by.update({each["line"]: each["of"] for each in fields})
        return [each["line"] for each in fields]

    path = job.model_directory / "model_state.tp0.5.pdparams"
    job.saves(path.name, 1.0, parameters=("weight", "bias", "more"))
    manager = job.manager()
    update, clearance = (f"Model Parameter {half} verified successfully" for half in ("update", "clearance"))
    loaded = ["start to load new checkpoint", "Updated 2/3 parameters", update]
    parameters = ["Model param: weight", "Model param: bias"]
    assert said() == [*parameters, *loaded, "DynamicLoad model built successfully"]
    job.enter(manager, CLEARING, OneRankRunner())
    clears = ["check model weights status! -1", "start to clear checkpoint", clearance]
    assert said() == [*clears, "finished clearing checkpoint"]
    job.enter(manager, UPDATING, OneRankRunner())
    assert said() == ["check model weights status! 1", *loaded, "finished loading new checkpoint"]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        manager.update_parameters()
    assert said() == []
    manager._update_model_from_state({"bias": paddle.zeros([2]), "unknown": paddle.zeros([1])}, "raw")
    manager._verify_parameters("update")
    assert said() == ["Updated 1/2 parameters", update]
    assert written_by[update] == "_verify_parameters"
    assert written_by["finished loading new checkpoint"] == "check_model_weights_status"


def test_the_page_for_who_has_fastdeploy_today_names_each_fragment_with_its_source():
    page = (Path(__file__).parent.parent.parent / "docs/fastdeploy_today.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    named = {name.strip("` ") for _, names in rows for name in names.split(",")}
    for fragment in Fragment:
        text, written_by = fragment.value
        fixed = max(text.split("{}"), key=len).strip()
        assert any(fixed in fragments for fragments, _ in rows), text
        assert written_by in named


@pytest.mark.parametrize(("status", "block"), [(99, True), (CLEARED, True), (99, False)])
def test_a_status_that_asks_nothing_is_waited_out(job, manager, status, block):
    runner = OneRankRunner()
    job.word.store(status)

    def writes() -> None:
        time.sleep(0.05)
        job.word.store(NORMAL)

    other = threading.Thread(target=writes)
    other.start()
    manager.check_model_weights_status(WordView(job.word), None, runner, job.port, block)
    other.join()
    assert runner.calls == []
    assert values(manager)["weight"] == 1.0


class LoopOfFastDeploy:
    """A caller that has a model runner, which is not looked at."""

    def __init__(self) -> None:
        self.model_runner = OneRankRunner()

    def turn(self, manager, *runner) -> None:
        manager.poll(*runner)


def test_the_second_line_is_handed_the_runner_and_says_so_where_it_is_not(job, manager):
    loop = LoopOfFastDeploy()
    with raising("no-runner", match=r"poll\(model_runner\)"):
        loop.turn(manager)
    with raising("unknown-generation"):
        loop.turn(manager, object())
    loop.turn(manager, loop.model_runner)
    loop.turn(manager)  # known by now
    assert manager.version


def test_with_one_changed_import_a_runner_is_looked_at_when_it_is_first_handed_in(job, manager):
    with raising("unknown-generation"):
        manager.check_model_weights_status(WordView(job.word), None, object(), job.port, block=True)
    manager.check_model_weights_status(WordView(job.word), None, OneRankRunner(), job.port, block=True)


def test_install_hands_in_the_runner_that_loads_which_is_looked_at_before_anything_is_loaded(job):
    job.saves("model_state.tp0.5.pdparams", 1.0)

    class Loading(OneRankRunner):
        fd_config = job.config()

        def load_model(self) -> None:
            job.make(self.fd_config, job.model())

    class OfNoGeneration:
        fd_config, load_model = Loading.fd_config, Loading.load_model

    for runner in (Loading, OfNoGeneration):
        _install._watch(runner)
    with raising("unknown-generation"):
        OfNoGeneration().load_model()
    assert not job.managers
    Loading().load_model()
    job.managers[0].poll()
    assert job.managers[0].version
