"""Weights from the device of a trainer's process to the device of this one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Start
from tests.gpu.contents import empty_layer, published
from tests.gpu.devices import Device
from tests.raising import raising
from wsm.actions.backends.paddle_weights import DeviceWeights
from wsm.actions.measuring import resident_digest
from wsm.strategies import IpcAsyncSource, IpcSource, LoadReport, errors, load

# A process's first use of a GPU may compile every kernel anew. The twins on the CPU show what the strategies'
# own tests show already, and start a process with paddle each.
pytestmark = [pytest.mark.paddle, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


def answer(trainer: subprocess.Popen[str], line: str | None = None) -> str:
    """Give the trainer a line, if there is one, and return the next that it says."""
    assert trainer.stdin
    assert trainer.stdout
    if line is not None:
        trainer.stdin.write(f"{line}\n")
        trainer.stdin.flush()
    said = trainer.stdout.readline().strip()
    assert said, trainer.communicate()[1]
    return said


def end(trainer: subprocess.Popen[str]) -> None:
    _, complaint = trainer.communicate("end\n")
    assert trainer.returncode == 0, complaint


def loaded(directory: Path, weights: DeviceWeights, **options: Any) -> LoadReport:
    return load(IpcSource(directory, 0, device_id=0, device_index=0, **options), weights, name="ipc")


def holds(weights: DeviceWeights, version: int) -> bool:
    return {name: bytes(weights.readable(name)) for name in weights.specs()} == {
        name: array.tobytes() for name, array in published(version).items()
    }


@pytest.mark.parametrize("released", [True, False], ids=["into released tensors", "in place"])
def test_tensors_of_one_process_are_verified_and_copied_into_those_of_another(
    device: Device, start: Start, tmp_path: Path, released: bool
) -> None:
    weights = device.weights(empty_layer())
    addresses = weights.addresses()
    if released:
        weights.release()
    trainer = start("trainer_process.py", "ipc", device.name, tmp_path, 7)
    digest = answer(trainer).removeprefix("ready ")
    report = loaded(tmp_path, weights)
    assert (report.version, report.verified, report.manifest_digest) == ("7", 3, digest)
    assert report.digest == resident_digest(weights, lambda: None)
    if not released:
        assert weights.addresses() == addresses
    end(trainer)
    assert holds(weights, 7), "what was loaded went with the trainer"
    assert not list(tmp_path.glob("ipc_metas_*"))


def test_versions_of_one_trainer_after_another_arrive_bit_equal(
    device: Device, start: Start, tmp_path: Path
) -> None:
    weights = device.weights(empty_layer())
    for version in (1, 2, 1):
        trainer = start("trainer_process.py", "ipc", device.name, tmp_path, version)
        answer(trainer)
        loaded(tmp_path, weights)
        assert holds(weights, version)
        end(trainer)


def test_what_a_dead_trainer_left_is_refused_and_the_weights_stay(
    device: Device, start: Start, tmp_path: Path
) -> None:
    weights = device.weights(empty_layer())
    before = resident_digest(weights, lambda: None)
    trainer = start("trainer_process.py", "ipc", device.name, tmp_path, 7)
    answer(trainer)
    trainer.kill()
    trainer.wait()
    with raising("owner-died"):
        loaded(tmp_path, weights, orphans="refuse")
    assert resident_digest(weights, lambda: None) == before
    successor = start("trainer_process.py", "ipc", device.name, tmp_path, 8)
    answer(successor)
    assert loaded(tmp_path, weights).version == "8"
    end(successor)


@pytest.mark.gpu
def test_tensors_that_were_written_to_after_they_were_shared_are_found_by_their_digest(
    start: Start, tmp_path: Path
) -> None:
    """On a GPU alone: on the host a trainer shares a copy, which it cannot write to."""
    from tests.gpu.devices import device_named  # noqa: PLC0415 - only where there is one

    weights = device_named("gpu").weights(empty_layer())
    trainer = start("trainer_process.py", "ipc", "gpu", tmp_path, 7)
    answer(trainer)
    assert answer(trainer, "change") == "changed"
    with raising(errors.DigestMismatchError):
        loaded(tmp_path, weights)
    end(trainer)


def test_buckets_of_another_process_are_verified_and_moved_to_the_device(
    device: Device, start: Start, tmp_path: Path
) -> None:
    """Buckets lie in host memory, whatever the trainer's tensors lie in."""
    weights = device.weights(empty_layer())
    weights.release()
    address = f"ipc://{tmp_path}/buckets"
    trainer = start("trainer_process.py", "ipc_async", device.name, address, 7)
    assert answer(trainer) == "ready"
    report = load(IpcAsyncSource(address), weights, name="ipc_async", version=7)
    assert (report.version, report.verified) == ("7", 3)
    assert report.digest == resident_digest(weights, lambda: None)
    assert holds(weights, 7)
    end(trainer)
