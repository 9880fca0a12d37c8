"""What users have on their discs stays readable: published by wsm at de3b07b, and a trainer's checkpoint.

``former/`` holds one version, a delta against it and a directory of safetensors, each of two tensors.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from wsm.strategies import (
    AdoptSettings,
    AdoptWay,
    DeltaSource,
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    adopt,
    load,
    read_version,
)

SPECS = (TensorSpec("layer.weight", "F32", (4, 4)), TensorSpec("layer.bias", "BF16", (8,)))


@pytest.fixture
def former(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).parent / "former", tmp_path / "former"))


def holds(target: MemoryTarget, first: int) -> bool:
    weight = (np.arange(16, dtype="<f4") + first).tobytes()
    return bytes(target.readable("layer.weight")) == weight and bytes(target.readable("layer.bias")) == bytes(
        range(16)
    )


def test_a_version_and_the_delta_against_it_load_as_they_were_published(former: Path) -> None:
    assert read_version(former / "versions") == "step-2"
    for rank in range(2):
        target = MemoryTarget(SPECS)
        source = SnapshotSource(former / "versions", rank, device_id=rank, shared_directory=None)
        assert load(source, target, version="step-1").version == "step-1"
        assert holds(target, 1)
        newer = DeltaSource(former / "versions", rank, device_id=rank)
        assert load(newer, target, name="delta", version="step-2").version == "step-2"
        assert holds(target, 2)


def test_a_trainers_checkpoint_is_adopted(former: Path, tmp_path: Path) -> None:
    settings = AdoptSettings(tmp_path / "into", [former], way=AdoptWay.COPY, durable=False)
    adopt(former / "trainer", settings, version="7")
    target = MemoryTarget(SPECS)
    source = SnapshotSource(tmp_path / "into", 0, shared_directory=None)
    assert load(source, target, version="7").version == "7"
    assert holds(target, 3)
