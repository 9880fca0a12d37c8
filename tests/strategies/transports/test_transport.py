"""A transport is kept between loads and closed after an error, finds the version, and has its modes.

The transport here brings shards of a published snapshot: real versions, and nothing but the protocol.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.actions.backends.memory import DeviceMemory
from wsm.command import CommandArguments
from wsm.config import ConfigurationError, config_from_mapping
from wsm.errors import BadInputError
from wsm.states.vocabulary import TransferMode
from wsm.strategies import (
    STRATEGIES,
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    errors,
    publish_snapshot,
)
from wsm.strategies import errors as strategies_errors
from wsm.strategies.applier.apply import apply_tensors
from wsm.strategies.conversation import Wanted
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.transports.by_version import INTERFACES, RsyncSource, check_transfer_mode
from wsm.worker import loading
from wsm.worker.loading import Sources

SPEC = TensorSpec("w", "U8", (4,))


class SnapshotTransport:
    """Brings what was published below `directory`."""

    name = "snapshot"

    def __init__(self, directory: Path, *, close_error: Exception | None = None) -> None:
        self.directory = directory
        self.opened = self.closed = 0
        self._close_error = close_error

    @contextlib.contextmanager
    def open(self, wanted: Wanted, observer: LoadObserver) -> Iterator[Offer]:
        self.opened += 1
        rank = wanted.rank
        source = SnapshotSource(self.directory, rank=rank, device_id=rank, world_size=wanted.world_size)
        with IpcSnapshot().open(source, wanted.version, observer) as offer:
            yield offer

    def close(self) -> None:
        self.closed += 1
        if self._close_error is not None:
            raise self._close_error


def publish(directory: Path, version: int, data: bytes = b"abcd") -> None:
    publish_snapshot(directory, version, {0: {"w": (SPEC, data)}})


def loaded(source: RsyncSource, version: str | None) -> tuple[str | None, bytes]:
    target = MemoryTarget([SPEC])
    with STRATEGIES["rsync"].open(source, version) as offer:
        apply_tensors(offer, target, UNOBSERVED)
    return offer.version, bytes(target.readable("w"))


@incident("FastDeploy#8078")
def test_a_transport_is_kept_for_the_next_load(tmp_path):
    publish(tmp_path, 1)
    transport = SnapshotTransport(tmp_path)
    source = RsyncSource(transport, rank=0, world_size=1)
    for _ in range(2):
        assert loaded(source, "1") == ("1", b"abcd")
    with STRATEGIES["rsync"].preview(source, "1") as offer:
        assert offer.version == "1"
    assert transport.closed == 0
    STRATEGIES["rsync"].close(source)
    assert transport.closed == 1


@incident("FastDeploy#8078")
def test_after_an_error_the_transport_is_closed_and_used_again(tmp_path):
    publish(tmp_path, 1)
    transport = SnapshotTransport(tmp_path)
    source = RsyncSource(transport)
    with raising(errors.SnapshotNotFoundError):
        loaded(source, "9")
    with pytest.raises(OSError, match="the model has no memory"), STRATEGIES["rsync"].open(source, "1"):
        raise OSError("the model has no memory")
    assert transport.closed == 2
    assert loaded(source, "1") == ("1", b"abcd")
    assert transport.closed == 2


@incident("FastDeploy C2-25")
def test_an_error_of_closing_does_not_hide_why_it_was_closed(tmp_path, caplog):
    publish(tmp_path, 1)
    transport = SnapshotTransport(tmp_path, close_error=OSError("the peer is gone"))
    with caplog.at_level(logging.WARNING), raising(errors.SnapshotNotFoundError):
        loaded(RsyncSource(transport), 9)
    assert "transport.not_closed" in caplog.text
    assert "the peer is gone" in caplog.text


def test_without_version_yaml_the_newest_is_what_was_published_last_whatever_it_is_called(tmp_path):
    source = RsyncSource(SnapshotTransport(tmp_path), directory=tmp_path)
    for label in ("step_9", "step_10", "a"):
        publish(tmp_path, label)
        (tmp_path / "version.yaml").unlink()
        assert loaded(source, None) == (label, b"abcd")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, errors.version_file_missing),
        ("[1]\n", errors.bad_version_file),
        ("version: 1\n", errors.bad_version_file),
        ("step: {\n", errors.bad_version_file),
    ],
    ids=["missing", "a list", "without a step", "not YAML"],
)
def test_a_version_yaml_that_names_none_is_an_error_and_no_connection(tmp_path, text, error):
    if text is not None:
        (tmp_path / "version.yaml").write_text(text)
    transport = SnapshotTransport(tmp_path)
    with raising(error, match=r"version\.yaml"):
        loaded(RsyncSource(transport, directory=tmp_path), None)
    assert transport.opened == 0


# -- which transfer modes there are for whom, on a machine without a device ------------------------------


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


@pytest.fixture
def paddle_sees(monkeypatch):
    """`paddle_sees(gpus)`: a build with CUDA that sees so many, or None: one without; as far as modes ask."""
    import paddle  # noqa: PLC0415 - a second of import time, for these tests alone

    def sees(gpus):
        monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: gpus is not None)
        monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: gpus)

    return sees


@pytest.mark.parametrize(
    ("gpus", "mode", "memory"),
    [
        (None, "built without CUDA; available are host, rdma", "CUDA"),
        (0, "paddle sees no GPU", "this machine has no GPU"),
    ],
)
def test_a_build_without_cuda_or_a_machine_without_a_gpu_is_said_to_be_one(paddle_sees, gpus, mode, memory):
    paddle_sees(gpus)
    for each in ("ipc", "gpu_direct"):
        with raising(strategies_errors.transfer_mode_unavailable, match=mode):
            check_transfer_mode(each, "checkpoint_transfer")
    with pytest.raises(BadInputError, match=memory):
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


@pytest.mark.parametrize("strategy", ["rsync", "gdr"])
def test_the_command_line_of_fastdeploy_7951_starts_a_worker_and_means_gdr(strategy, paddle_sees, caplog):
    paddle_sees(1)
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


def test_a_checksum_that_gdr_cannot_check_is_a_warning(paddle_sees, caplog):
    paddle_sees(1)
    made = sources("gdr", transfer_mode="gdr", verify_checksum=False)
    assert made.of(0, verify_checksum=True) is made.of(0)
    assert "transfer.unchecked" in caplog.text


def test_options_of_a_transfer_are_refused_by_strategies_that_have_none():
    with raising("transfer-option-unavailable", match="verify_checksum"):
        sources("ipc_snapshot").of(0, verify_checksum=True)
    assert sources("ipc_snapshot").of(0, verify_checksum=False)
