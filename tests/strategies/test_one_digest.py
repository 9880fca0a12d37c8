"""The digest that ranks report of a version is that of the version, by whatever way it came."""

from __future__ import annotations

from pathlib import Path

from delta_directory import A, B, Directory

from wsm.strategies import MemoryTarget, SharedTensors, SnapshotSource, load, publish_snapshot, with_manifest
from wsm.strategies.digest import digest_of
from wsm.strategies.mooncake.publisher import PlacedShard, grants_of
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest


def test_files_changes_a_stream_and_memory_of_a_trainer_say_one_digest_of_the_same_tensors(
    tmp_path: Path,
) -> None:
    published = publish_snapshot(tmp_path / "whole", 2, {0: B}, durable=False)
    directory = Directory(tmp_path / "changes")
    directory.whole(1, A)
    target = MemoryTarget(spec for spec, _ in B.values())
    source = SnapshotSource(tmp_path / "whole", 0, device_id=0, shared_directory=None)

    tensors = tuple(PromisedTensor(spec, digest_of(data)) for spec, data in B.values())
    shard = PlacedShard(tensors, (), ((0, 0),) * len(tensors))
    grant = grants_of("2", {0: shard}, publisher="0" * 32, session="127.0.0.1:1")[0]
    stream = StreamManifest.decode(bytes(with_manifest(B, version=2)[MANIFEST_TENSOR]), file="a stream")

    with SharedTensors(tmp_path / "shared") as trainer:
        shared = trainer.publish(2, {0: B})

    said = {
        "publisher": published.manifest_digest,
        "rank": load(source, target, version="2").manifest_digest,
        "delta": directory.delta(2, 1, B).manifest_digest,
        "rank with the base": directory.load(2, target).manifest_digest,
        "memory": grant.publication.group_digest,
        "stream": stream.group_digest,
        "shared memory": shared.manifest_digest,
    }
    assert set(said.values()) == {published.manifest_digest}
