"""Which transfer modes there are for whom, on a machine without a device."""

from __future__ import annotations

import pytest

from tests.raising import raising
from wsm.actions.backends.paddle_memory import DeviceMemory
from wsm.config import config_from_mapping
from wsm.errors import BadInputError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.transports import errors as transport_errors
from wsm.strategies.transports.transfer_modes import INTERFACES, check_transfer_mode
from wsm.worker.loading import Sources


@pytest.mark.parametrize(
    ("mode", "transport", "text"),
    [
        ("rdma", "checkpoint_transfer", "there is no such mode; available are host"),
        ("gpu_direct", "mooncake", "mooncake has its own"),
    ],
)
def test_a_mode_that_is_not_available_is_refused_with_those_that_are(mode, transport, text):
    with raising(strategies_errors.transfer_mode_unavailable, match=text):
        check_transfer_mode(mode, transport)


def test_a_build_without_cuda_is_refused_with_the_modes_that_are_left(monkeypatch):
    import paddle  # noqa: PLC0415 - a second of import time, for this test alone

    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: False)
    with raising(
        strategies_errors.transfer_mode_unavailable, match="paddle is built without CUDA; available are host"
    ):
        check_transfer_mode("ipc", "checkpoint_transfer")


def test_a_build_with_cuda_and_without_a_gpu_says_which_of_them_is_missing(monkeypatch):
    import paddle  # noqa: PLC0415 - a second of import time, for this test alone

    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 0)
    with raising(strategies_errors.transfer_mode_unavailable, match="paddle sees no GPU"):
        check_transfer_mode("gpu_direct", "checkpoint_transfer")
    with pytest.raises(BadInputError, match="this machine has no GPU"):
        DeviceMemory()


def test_the_mode_host_is_there_for_everybody_who_has_modes():
    check_transfer_mode("host", "mooncake")
    assert "host" in INTERFACES


def sources(strategy, **rsync):
    return Sources(config_from_mapping({"name": "g", "ranks": 2, "strategy": strategy, "rsync": rsync}))


@pytest.mark.parametrize(
    ("rsync", "error"),
    [
        ({"transport": "rdma"}, transport_errors.transport_unknown),
        ({"transfer_mode": "gpu_direct"}, strategies_errors.transfer_mode_unavailable),
        ({"rsync_config": {"etcd": "a:1"}}, transport_errors.bad_transport_option),
    ],
)
@pytest.mark.parametrize("strategy", ["rsync", "gdr"])
def test_what_no_load_could_use_is_refused_when_the_worker_starts(strategy, rsync, error):
    with raising(error):
        sources(strategy, **rsync)


@pytest.mark.parametrize("strategy", ["ipc", "ipc_snapshot", "delta", "rsync"])
def test_a_strategy_without_modes_refuses_all_of_them_by_its_name(strategy):
    text = f"the strategy {strategy} has no transfer modes; available are none"
    with raising(strategies_errors.transfer_mode_unavailable, match=text):
        sources(strategy).of(0, "host")


def test_a_source_is_made_once_for_each_mode():
    made = sources("gdr", rsync_config={"gdr_mtp_chunk_size": 3})
    assert made.of(0) is made.of(0, "host")
    assert made.of(0) is not made.of(1)
    assert made.of(0).chunk_tensors == 3
    with raising(strategies_errors.transfer_mode_unavailable):
        made.of(0, "gpu_direct")
