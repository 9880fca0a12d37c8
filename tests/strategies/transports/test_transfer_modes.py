"""Which transfer modes there are for whom, on a machine without a device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.raising import raising
from wsm.actions.backends.memory import DeviceMemory
from wsm.command import CommandArguments
from wsm.config import ConfigurationError, config_from_mapping
from wsm.errors import BadInputError
from wsm.states.vocabulary import TransferMode
from wsm.strategies import errors as strategies_errors
from wsm.strategies.transports.by_version import INTERFACES, check_transfer_mode
from wsm.worker import loading
from wsm.worker.loading import Sources


@pytest.mark.parametrize(
    ("mode", "transport", "text"),
    [
        ("nccl", "checkpoint_transfer", "there is no such mode; available are host, rdma"),
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
        strategies_errors.transfer_mode_unavailable,
        match="built without CUDA; available are host, rdma",
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
        ({"transport": "rdma"}, "transport-unknown"),
        ({"transfer_mode": "gpu_direct"}, strategies_errors.transfer_mode_unavailable),
        ({"rsync_config": {"redis_port": "1"}}, "bad-transport-option"),
        ({"first_rank": 2, "job_ranks": 3}, ConfigurationError),
    ],
)
@pytest.mark.parametrize("strategy", ["rsync", "gdr"])
def test_what_no_load_could_use_is_refused_when_the_worker_starts(strategy, rsync, error):
    with raising(error):
        sources(strategy, **rsync)


@pytest.mark.parametrize("strategy", ["ipc", "ipc_snapshot", "delta"])
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


#: What FastDeploy#7951 says to start a server with, as it stands there.
SEED = """{"transfer_mode": "gdr", "gpu_direct": true,
"gdr_mtp_chunk_size": 1, "gdr_prefetch_queue_size": 2}"""


@pytest.fixture
def fake_cuda(monkeypatch):
    """A build with CUDA that sees one GPU, as far as a transfer mode asks."""
    import paddle  # noqa: PLC0415 - a second of import time, for these tests alone

    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 1)


@pytest.mark.parametrize("strategy", ["rsync", "gdr"])
def test_the_command_line_of_fastdeploy_7951_starts_a_worker_and_means_gdr(strategy, fake_cuda, caplog):
    made = sources(strategy, rsync_config=json.loads(SEED))
    assert made.of(0).chunk_tensors == 1
    assert made.of(0) is made.of(0, "gdr")
    assert made.of(0, "rdma").chunk_tensors is None
    made.of(0, rsync_config={"gdr_release_cache": True})
    assert "transport.option_unused option=gdr_release_cache" in caplog.text
    assert "say it in the configuration" in caplog.text


@pytest.mark.parametrize("strategy", ["rsync", "gdr"])
def test_without_a_device_it_starts_too_and_only_what_needs_one_is_refused(strategy):
    made = sources(strategy, rsync_config=json.loads(SEED))
    assert made.of(0, "rdma").chunk_tensors is None
    with raising(strategies_errors.transfer_mode_unavailable, match="'gdr' cannot be used: paddle is built"):
        made.of(0)


@pytest.mark.parametrize(("strategy", "chunk"), [("rsync", None), ("gdr", 16)])
def test_the_mode_of_a_configuration_that_names_none_is_the_strategys_own(strategy, chunk):
    made = sources(strategy)
    assert made.of(0).chunk_tensors == chunk
    assert made.of(0) is made.of(0, "host")


def test_what_a_command_says_of_its_transfer_replaces_the_source_of_the_one_before():
    made = sources("rsync", rsync_config={"etcd_server": "a:1"})
    usual = made.of(0)
    assert made.of(0, verify_checksum=True) is usual  # which is configured
    other = made.of(0, verify_checksum=False, rsync_config={"etcd_server": "b:1"})
    assert other is not usual
    assert made.of(0, verify_checksum=False, rsync_config={"etcd_server": "b:1"}) is other
    assert made.of(0) is not other
    with raising("bad-transport-option"):
        made.of(0, rsync_config={"redis_port": "1"})


def test_the_announced_version_is_looked_for_where_the_command_loads_from(monkeypatch):
    made, seen = sources("rsync", rsync_config={"etcd_server": "a:1"}), []
    said = {"verify_checksum": False, "rsync_config": {"etcd_server": "b:1"}}
    monkeypatch.setattr(
        loading, "inspect", lambda source, name: seen.append(source) or SimpleNamespace(version="7")
    )
    assert made.find(0, CommandArguments("r", transfer_mode=TransferMode.HOST, **said)).version == "7"
    assert seen == [made.of(0, "host", **said)]
    assert made.find(0, CommandArguments("r")).version == "7"
    assert seen[1] is made.of(0)


def test_a_checksum_that_gdr_cannot_check_is_a_warning(fake_cuda, caplog):
    made = sources("gdr", transfer_mode="gdr", verify_checksum=False)
    assert made.of(0, verify_checksum=True) is made.of(0)
    assert "transfer.unchecked" in caplog.text


def test_options_of_a_transfer_are_refused_by_strategies_that_have_none():
    with raising("transfer-option-unavailable", match="verify_checksum"):
        sources("ipc_snapshot").of(0, verify_checksum=True)
    assert sources("ipc_snapshot").of(0, verify_checksum=False)
