"""Small snapshots for the tests of incidents: published by wsm, or written as a trainer without it does."""

from __future__ import annotations

import json
from pathlib import Path

from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, publish_snapshot

SPEC = TensorSpec("weight", "F32", (64,))
OTHER = TensorSpec("bias", "F32", (16,))


def shard(value: int, *specs: TensorSpec) -> dict[str, tuple[TensorSpec, bytes]]:
    return {spec.name: (spec, bytes([value]) * spec.nbytes) for spec in specs or (SPEC, OTHER)}


def publish(directory: Path, shards: dict, version: int = 1, **options) -> Path:
    return Path(publish_snapshot(directory, version, shards, durable=False, **options).path)


def source(directory: Path, rank: int = 0, **options) -> SnapshotSource:
    return SnapshotSource(directory, rank, **{"device_id": rank, "shared_directory": None, **options})


def served_target(*specs: TensorSpec) -> MemoryTarget:
    """A target that holds weights of which every byte is 0x5a."""
    target = MemoryTarget(specs or (SPEC, OTHER))
    for name, spec in target.specs().items():
        target.writable(name)[:] = b"\x5a" * spec.nbytes
    return target


def is_untouched(target: MemoryTarget) -> bool:
    return all(set(bytes(target.readable(name))) == {0x5A} for name in target.specs())


def write_flat(path: Path, value: int, *specs: TensorSpec) -> None:
    """Write a safetensors file as a trainer without wsm does."""
    header, data = {}, b""
    for name, (spec, content) in shard(value, *specs).items():
        offsets = [len(data), len(data) + spec.nbytes]
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
