"""The adapter of CheckpointTransfer, against a stand-in that talks over real sockets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from checkpoint_transfer.sender import FakeSender
from checkpoint_transfer.stream import FakeCheckpointTransfer
from checkpoint_transfer.transfer import FakeUnifiedTransfer
from small_state import State, contents, make_paddle_state

from tests.incident import incident
from tests.raising import raising
from wsm.clock import ManualClock
from wsm.errors import GroupError
from wsm.strategies import (
    LoadReport,
    ManifestScope,
    MemoryTarget,
    RsyncSource,
    TensorSpec,
    errors,
    load,
    with_manifest,
)
from wsm.strategies.conversation import Wanted
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.transports import _foreign as batches
from wsm.strategies.transports._foreign import ForeignThread
from wsm.strategies.transports.checkpoint_transfer import (
    CheckpointTransferOptions,
    CheckpointTransferTransport,
    Interface,
)

pytestmark = pytest.mark.processes


@pytest.fixture
def sender() -> Iterator[FakeSender]:
    made = FakeSender(bucket_bytes=256)
    yield made
    made.close()


@pytest.fixture
def made() -> list[FakeCheckpointTransfer]:
    """Every object of the package that the test makes the adapter construct."""
    FakeCheckpointTransfer.made.clear()
    FakeUnifiedTransfer.made.clear()
    return FakeCheckpointTransfer.made


@pytest.fixture
def source(sender: FakeSender, made: list[FakeCheckpointTransfer]) -> Iterator[Callable[..., RsyncSource]]:
    kept: list[CheckpointTransferTransport] = []

    def make(
        *, rank: int = 0, world_size: int = 1, config: Mapping[str, Any] | None = None, **options: Any
    ) -> RsyncSource:
        rsync_config = {"redis_host": "127.0.0.1", "redis_port": sender.port, **(config or {})}

        kept.append(CheckpointTransferTransport(CheckpointTransferOptions.of(rsync_config), **options))
        return RsyncSource(kept[-1], rank, world_size)

    yield make
    for transport in kept:
        transport.close()


class Model:
    """A rank's memory, and whether it was tainted."""

    def __init__(self, *, adopting: bool = False) -> None:
        self.target = MemoryTarget((spec for spec, _ in make_paddle_state().values()), adopting=adopting)
        self.tainted = 0

    def load(self, source: RsyncSource, version: int | None, **options: Any) -> LoadReport:
        return load(source, self.target, name="rsync", version=version, taint=self._taint, **options)

    def holds(self, state: State) -> bool:
        return contents(self.target) == {name: data for name, (_, data) in state.items()}

    def _taint(self) -> None:
        self.tainted += 1


def described(state: State, version: int) -> dict[str, Any]:
    return with_manifest(state, version=version, rank=0, world_size=1)


@pytest.mark.slow
def test_thousands_of_small_tensors_change_threads_far_fewer_times(sender, source, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_S", 3600.0)  # however slow the machine is
    calls, call = [], ForeignThread.call
    monkeypatch.setattr(ForeignThread, "call", lambda self, *a, **o: calls.append(a) or call(self, *a, **o))
    state = {f"t{index}": np.full(8, index, np.float32) for index in range(2000)}
    target = MemoryTarget(TensorSpec(name, "F32", (8,)) for name in state)
    sender.send(with_manifest(state, version=1, rank=0, world_size=1), step_id="1")
    report = load(source(), target, name="rsync", version=1)
    assert (report.tensors, report.verified) == (len(state), len(state))
    assert all(bytes(target.readable(name)) == array.tobytes() for name, array in state.items())
    assert len(calls) < len(state) / 2


def test_what_the_load_cost_is_split_into_waiting_and_own_work(sender, source):
    sender.send(described(make_paddle_state(), 1), step_id="1")
    report = Model().load(source(), 1)
    assert 0 < report.sync_s < report.seconds
    assert report.sync_s + report.apply_s == pytest.approx(report.seconds)


def test_a_released_model_keeps_the_memory_and_a_held_one_is_copied_into(sender, source):
    rsync = source(keep=True)
    model = Model(adopting=True)
    sender.send(described(make_paddle_state(seed=1), 1), step_id="1")
    boot = model.load(rsync, 1)
    assert boot.adopted_bytes == boot.bytes
    kept = {name: model.target.readable(name) for name in model.target.held()}
    sender.send(described(make_paddle_state(seed=2), 2), step_id="2")
    later = model.load(rsync, 2)
    assert later.adopted_bytes == 0
    assert model.holds(make_paddle_state(seed=2))
    assert kept == {
        name: make_paddle_state(seed=2)[name][1] for name in kept
    }  # in place: captured addresses hold


def test_without_leave_to_keep_it_a_released_model_gets_a_copy(sender, source):
    sender.send(described(make_paddle_state(), 1), step_id="1")
    assert Model(adopting=True).load(source(), 1).adopted_bytes == 0


def test_a_stream_without_a_manifest_is_refused_before_anything_is_touched(sender, source):
    sender.send(make_paddle_state(), step_id="1")
    model = Model()
    with raising("unverified-stream", match=r"'embed.weight' first.*with_manifest"):
        model.load(source(), 1)
    assert model.tainted == 0


def test_a_stream_without_a_manifest_is_applied_unverified_if_that_was_configured(sender, source):
    sender.send(make_paddle_state(seed=4), step_id="1")
    model = Model()
    report = model.load(source(verify_checksum=False), 1)
    assert model.holds(make_paddle_state(seed=4))
    assert (report.verified, report.manifest_scope) == (0, ManifestScope.LOADED)


@incident("FastDeploy#7951")
def test_a_tensor_that_the_manifest_describes_otherwise_is_refused(sender, source):
    sent = described(make_paddle_state(), 1)
    sent["head.weight"] = paddle.zeros([16, 8])
    sender.send(sent, step_id="1")
    model = Model()
    with raising("unpromised-tensor", match=r"F32\[16, 8\].*F32\[8, 16\]") as caught:
        model.load(source(), 1)
    assert caught.value.touched
    assert model.tainted == 1


@pytest.mark.slow
def test_a_sender_that_always_sends_something_is_ended_by_the_limit_of_the_whole(sender, source):
    sender.send(make_paddle_state(), step_id="1", wrong="dribble")
    rsync = source(config={"session_total_timeout_s": 2}, verify_checksum=False)
    with raising("transfer-too-long", match="session_total_timeout_s") as caught:
        Model().load(rsync, 1, allowed_unknown=["one more"])
    assert caught.value.touched


def test_what_a_rank_does_with_the_tensors_does_not_count_as_waiting_for_them(sender, source):
    """A model that takes an hour for each tensor is not the sender's fault."""
    clock = ManualClock()

    class Slow(MemoryTarget):
        def writable(self, name):
            clock.advance(3600.0)
            return super().writable(name)

    state = make_paddle_state()
    sender.send(described(state, 1), step_id="1")
    target = Slow(spec for spec, _ in state.values())
    rsync = source(config={"session_total_timeout_s": 60}, clock=clock)
    assert load(rsync, target, name="rsync", version=1).verified == len(state)


@pytest.mark.slow_but
@incident("FastDeploy C2-25")
@pytest.mark.parametrize("raised", [ConnectionError("no route"), None], ids=["raises", "hangs"])
def test_an_object_that_cannot_be_initialized_is_cleaned_up_and_not_used_again(
    sender, made, monkeypatch, raised
):
    def initialize(_transfer):
        if raised is not None:
            raise raised
        release.wait(60)

    release = threading.Event()
    options = {
        "redis_host": "127.0.0.1",
        "redis_port": sender.port,
        "discover_timeout_s": 3 if raised is None else 60,
    }
    transport = CheckpointTransferTransport(CheckpointTransferOptions.of(options))
    sender.send(described(make_paddle_state(), 1), step_id="1")
    with monkeypatch.context() as patched:
        patched.setattr(FakeCheckpointTransfer, "initialize", initialize)
        with pytest.raises(GroupError), transport.open(Wanted(0, None, "1", look=False), UNOBSERVED):
            pytest.fail("it opened")
    release.set()
    # By the same transport: nobody has closed it.
    with transport.open(Wanted(0, None, "1", look=False), UNOBSERVED) as offer:
        assert offer.version == "1"
    transport.close()
    assert len(made) == 2
    assert made[1].cleaned
    assert made[0].cleaned or raised is None  # what hangs is left to its thread


def test_a_cancelled_load_does_not_wait_for_a_silent_sender(sender, source):
    sender.send(described(make_paddle_state(), 1), step_id="1", wrong="silent")
    cancel = threading.Event()
    threading.Timer(0.05, cancel.set).start()
    with raising(errors.LoadCancelledError) as caught:
        Model().load(source(), 1, cancelled=cancel.is_set)
    assert not caught.value.touched


def test_an_unnamed_version_without_a_directory_is_refused(source):
    with raising("version-unnamed", match="directory"):
        Model().load(source(), None)


@pytest.mark.parametrize(
    "item",
    [7, ("w",), (3, b"bytes"), ("w", object())],
    ids=["an int", "a name alone", "a name that is no text", "no tensor"],
)
def test_what_is_no_named_tensor_is_a_typed_error(source, monkeypatch, item):
    class Strange(FakeCheckpointTransfer):
        def receive_stream(self, step_id, verify_checksum):
            yield item

    monkeypatch.setattr("checkpoint_transfer.CheckpointTransfer", Strange, raising=False)
    with raising("foreign-tensor") as caught:
        Model().load(source(verify_checksum=False), 1)
    assert not caught.value.touched


def test_a_package_that_is_missing_is_named_with_what_to_do(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "checkpoint_transfer", None)
    with raising("transport-package-unusable", match="not on PyPI"):
        Model().load(source(), 1)


def test_a_package_of_another_shape_is_no_attribute_error(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "checkpoint_transfer", SimpleNamespace())
    with raising("transport-package-unusable", match="has no CheckpointTransfer"):
        Model().load(source(), 1)


# -- FastDeploy's own scenarios (tests/rl/test_dynamic_weight_gdr.py, test_dynamic_weight_manager.py) -------


def test_the_first_interface_gets_the_configuration_the_local_rank_and_the_number_of_ranks(
    sender, source, made
):
    state = with_manifest(make_paddle_state(), version=1, rank=5, world_size=8, publication="p")
    sender.send(state, step_id="1", rank=5)
    Model().load(source(rank=5, world_size=8, config={"etcd_server": "etcd:2379", "backend": "mooncake"}), 1)
    (transfer,) = made
    assert (transfer.rank, transfer.group_size) == (5, 8)
    assert transfer.options == {"etcd_server": "etcd:2379", "backend": "mooncake"}
    assert sender.asked[0]["step_id"] == "1"


@pytest.mark.parametrize(
    ("interface", "asked_for"),
    [(Interface.GPU_DIRECT, ("gpu_direct", 13, 3)), (Interface.IPC, ("ipc", 3, 2))],
)
def test_the_second_interface_gets_the_rank_that_its_backend_goes_by(sender, source, interface, asked_for):
    backend, rank, qsize = asked_for
    state = with_manifest(make_paddle_state(), version=1, rank=5, world_size=8, publication="p")
    sender.send(state, step_id="1", rank=rank)
    config = {
        "index": 1,
        "group_size": 16,
        "device_name": "mlx5_0",
        "etcd_server": "dropped here",
    }
    rsync = source(rank=5, world_size=8, config=config, interface=interface, device_index=3)
    Model().load(rsync, 1)
    (transfer,) = FakeUnifiedTransfer.made
    assert transfer.config.role.name == "INFERENCE"
    assert transfer.config.phase1_backend.value == backend
    assert (transfer.config.global_rank, transfer.config.group_size) == (rank, 16)
    assert (transfer.config.device, transfer.config.qsize) == ("mlx5_0", qsize)
    assert transfer.frameworks == ["paddle"]
    rsync.transport.close()
    assert transfer.cleaned  # in the event loop that it was initialized in, which the stand-in asserts


def test_the_callers_mapping_is_not_changed():
    config = {"device_name": "mlx5_0", "group_size": 4, "index": 1}
    options = CheckpointTransferOptions.of(config)
    assert config == {"device_name": "mlx5_0", "group_size": 4, "index": 1}
    assert options.for_the_package == {"device": "mlx5_0"}
    assert (options.group_size, options.index) == (4, 1)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"gdr_prefetch_queue_size": 0}, "more than 0"),
        ({"transfer_mode": "tcp"}, "one of rdma, gdr"),
        ({"redis_port": "6379"}, "it must be a whole number"),
        ({"qsize": True}, "it must be a whole number"),
        ({"recv_bucket_timeout_s": 0}, "more than 0"),
        ({"output_framework": "torch"}, "one of paddle"),
        ({3: 4}, "is no text"),
    ],
)
def test_options_that_fastdeploy_would_misread_are_refused(config, text):
    with raising("bad-transport-option", match=text):
        CheckpointTransferOptions.of(config)


def test_options_that_wsm_does_not_know_are_passed_on_and_a_typing_error_is_said(
    sender, source, made, caplog
):
    sender.send(described(make_paddle_state(), 1), step_id="1")
    Model().load(source(config={"etcd_sever": "a:1", "new_option": [1], "gdr_debug_tensor_digest": True}), 1)
    assert made[0].options == {"etcd_sever": "a:1", "new_option": [1]}
    assert "option=etcd_sever similar=etcd_server" in caplog.text
    assert "new_option" not in caplog.text


def test_the_second_interface_gets_what_its_configuration_knows_and_the_log_says_the_rest(
    sender, source, caplog
):
    caplog.set_level("INFO")
    sender.send(described(make_paddle_state(), 1), step_id="1")
    Model().load(source(config={"new_option": 1, "qsize": 5}, interface=Interface.GPU_DIRECT), 1)
    (transfer,) = FakeUnifiedTransfer.made
    assert transfer.config.qsize == 5
    assert "transport.options_dropped transport=checkpoint_transfer options=new_option" in caplog.text


def test_there_is_no_manifest_of_nothing_or_of_itself():
    for state in ({}, described(make_paddle_state(), 1)):
        with raising(errors.trainer_tensor, match=r"!wsm\.manifest"):
            described(state, 1)
