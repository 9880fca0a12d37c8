"""Versions that travel by a package of somebody else's: kept connections, reused buffers, checksums."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from checkpoint_transfer.sender import FakeSender
from checkpoint_transfer.stream import FakeCheckpointTransfer
from checkpoint_transfer.transfer import FakeUnifiedTransfer

from wsm.strategies import MemoryTarget, TensorSpec, errors, load, with_manifest
from wsm.strategies.checkpoint_models import AuxiliaryNames
from wsm.strategies.transports.by_version import GdrSource
from wsm.strategies.transports.checkpoint_transfer import (
    CheckpointTransferOptions,
    CheckpointTransferTransport,
    Interface,
)

pytestmark = pytest.mark.processes

SPECS = [TensorSpec(f"mtp_block.{index}.w", "F32", (8,)) for index in range(5)]


def state(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {spec.name: random.standard_normal(8).astype(np.float32) for spec in SPECS}


class ByName:
    """A loader that takes by name those that it matches."""

    def __init__(self, name: str, specs: list[TensorSpec]) -> None:
        self.name = name
        self._takes = {spec.name: spec for spec in specs}

    def takes(self):
        return self._takes

    def load_weights(self, tensors, parameters):
        for spec, data in tensors:
            parameters.memory(spec.name)[:] = data
            parameters.complete(spec.name)


@pytest.fixture
def sender() -> Iterator[FakeSender]:
    made = FakeSender(bucket_bytes=64)  # two tensors to a bucket
    FakeCheckpointTransfer.made.clear()
    FakeUnifiedTransfer.made.clear()
    yield made
    made.close()


@pytest.fixture
def source(sender: FakeSender) -> Iterator[GdrSource]:
    kept = transport(sender, Interface.STREAM)
    yield GdrSource(kept, chunk_tensors=4)
    kept.close()


def transport(sender: FakeSender, interface: Interface) -> CheckpointTransferTransport:
    options = CheckpointTransferOptions.of(
        {
            "redis_host": "127.0.0.1",
            "redis_port": sender.port,
            "materialize_tensors": False,
            "num_buffers": 1,
        }
    )
    return CheckpointTransferTransport(options, interface=interface)


def send(sender: FakeSender, version: int, wrong: str = "") -> None:
    sender.send(with_manifest(state(version), version=version), step_id=str(version), wrong=wrong)


def holds(target: MemoryTarget, version: int) -> bool:
    return all(target.readable(name) == value.tobytes() for name, value in state(version).items())


def test_fastdeploy_8078_and_8079_a_connection_is_kept_between_updates_and_made_anew_after_an_error(
    sender, source
):
    target = MemoryTarget(SPECS)
    for version in (1, 2, 3):
        send(sender, version)
        load(source, target, name="gdr", version=version)
        assert holds(target, version)
    assert sender.connected == 1
    with pytest.raises(Exception, match="step 9 is not ready"):
        load(source, target, name="gdr", version=9)
    send(sender, 4)
    load(source, target, name="gdr", version=4)
    assert (sender.connected, len(FakeCheckpointTransfer.made)) == (2, 2)


def test_fastdeploy_c2_19_a_chunk_for_mtp_does_not_lie_in_a_buffer_that_is_used_again(sender, source):
    send(sender, 1)
    names = AuxiliaryNames()
    loaders = [ByName("main", []), ByName("mtp", [spec for spec in SPECS if names.match(spec.name)])]
    target = MemoryTarget(SPECS)
    load(source, target, name="gdr", version=1, loaders=loaders)
    assert holds(target, 1)  # four tensors waited while their one buffer was filled twice more


def test_fastdeploy_c2_25_one_event_loop_for_life_and_clean_up_errors_are_said(sender, caplog):
    class Untidy(FakeUnifiedTransfer):
        async def cleanup(self):
            await super().cleanup()
            raise OSError("the card is still registered")

    kept = transport(sender, Interface.GPU_DIRECT)
    send(sender, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("checkpoint_transfer.transfer.CheckpointTransfer", Untidy)
        load(GdrSource(kept), MemoryTarget(SPECS), name="gdr", version=1)
    (transfer,) = FakeUnifiedTransfer.made
    with caplog.at_level(logging.WARNING):
        kept.close()
    assert transfer.cleaned  # in the loop of its initialize(), or the stand-in had raised
    assert isinstance(transfer.loop, asyncio.AbstractEventLoop)
    assert "the card is still registered" in caplog.text


def test_fastdeploy_7951_a_checksum_that_was_asked_for_is_compared(sender, source):
    send(sender, 1, wrong="lie")
    with pytest.raises(errors.DigestMismatchError, match=r"mtp_block\.4\.w"):
        load(source, MemoryTarget(SPECS), name="gdr", version=1)
