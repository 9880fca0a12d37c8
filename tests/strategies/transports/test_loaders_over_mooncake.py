"""A checkpoint in a publisher's memory, fed to the loaders of two ranks, which each cut their own part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from wsm.strategies import (
    GdrSource,
    LoadReport,
    MemoryTarget,
    MooncakePublisher,
    MooncakeTransport,
    TensorSpec,
    load,
)
from wsm.strategies.applier.feeding import ParameterMemory

pytestmark = [pytest.mark.processes, pytest.mark.needs("mooncake")]

LAYERS, ROWS, COLUMNS = 40, 64, 96
Checkpoint = Mapping[str, np.ndarray]


def checkpoint(seed: int) -> dict[str, np.ndarray]:
    """One matrix of three MiB, and small ones that lie beside each other in the publisher's memory."""
    generator = np.random.default_rng(seed)
    small = {f"layers.{index}.up": (ROWS, COLUMNS) for index in range(LAYERS)}
    shapes = {**small, "embed": (1024, 768), "mtp.up": (ROWS, COLUMNS)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class HalfLoader:
    """Takes the rank's half of the rows of every matrix."""

    def __init__(self, name: str, names: Iterable[str], rank: int) -> None:
        self.name = name
        self.chunks = 0
        self._rank = rank
        self._takes = {each: TensorSpec(each, "F32", checkpoint(0)[each].shape) for each in names}

    def takes(self) -> Mapping[str, TensorSpec]:
        return self._takes

    def load_weights(
        self, tensors: Iterable[tuple[TensorSpec, memoryview]], parameters: ParameterMemory
    ) -> None:
        self.chunks += 1
        for spec, data in tensors:
            half = len(data) // 2
            parameters.memory(spec.name)[:] = data[self._rank * half : (self._rank + 1) * half]
            parameters.complete(spec.name)


class Rank:
    def __init__(self, rank: int, address: str) -> None:
        main = [name for name in checkpoint(0) if not name.startswith("mtp")]
        self.rank = rank
        self.loaders = [HalfLoader("main", main, rank), HalfLoader("mtp", ["mtp.up"], rank)]
        self.target = MemoryTarget(
            TensorSpec(name, "F32", (whole.shape[0] // 2, whole.shape[1]))
            for name, whole in checkpoint(0).items()
        )
        self.transport = MooncakeTransport(address, connect_s=5.0, span_bytes=1 << 16, buffers=2)

    def load(self, version: int) -> LoadReport:
        source = GdrSource(self.transport, self.rank, world_size=2, chunk_tensors=2)
        return load(
            source,
            self.target,
            name="gdr",
            version=version,
            loaders=self.loaders,
        )

    def holds(self, state: Checkpoint) -> bool:
        return all(
            bytes(self.target.readable(name)) == np.split(whole, 2)[self.rank].tobytes()
            for name, whole in state.items()
        )


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[MooncakePublisher]:
    with MooncakePublisher(f"ipc://{tmp_path}/publisher") as made:
        yield made


@pytest.fixture
def ranks(publisher: MooncakePublisher) -> Iterator[list[Rank]]:
    made = [Rank(rank, publisher.address) for rank in range(2)]
    yield made
    for rank in made:
        rank.transport.close()


def test_each_rank_makes_its_part_of_one_checkpoint_and_versions_follow_each_other(publisher, ranks):
    for version, seed in ((1, 1), (2, 2), (3, 1)):
        state = checkpoint(seed)
        with publisher.publishing(version, {0: state, 1: state}, finite=True) as published:
            for rank in ranks:
                report = rank.load(version)
                assert rank.holds(state)
                assert report.manifest_digest == published.manifest_digest
                assert (report.tensors, report.verified) == (len(state), len(state))
    assert ranks[0].loaders[1].chunks == 3
