"""A group whose weights arrive in a trainer's memory, shared or streamed: real ranks, the same guarantees."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from checkpoint_transfer.sender import FakeSender
from living_group import shard_of

from tests.incident import incident
from tests.raising import matches, raising
from wsm import Outcome
from wsm.controller.errors import RankFailedError
from wsm.errors import WsmError
from wsm.strategies import (
    BucketSender,
    MooncakePublisher,
    SharedTensors,
    TensorSpec,
    with_manifest,
    write_version,
)
from wsm.strategies.buckets.source import IpcAsyncConfig
from wsm.strategies.errors import trainer_tensor
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest
from wsm.testing import InMemoryRunner, LocalGroup

pytestmark = pytest.mark.processes


@pytest.fixture
def group(make_group, tmp_path):
    return make_group(config={"strategy": "ipc", "ipc": {"directory": str(tmp_path / "metas")}}, load=0.5)


@pytest.fixture
def publish(group, tmp_path):
    with SharedTensors(tmp_path / "metas") as shared:

        def publish_version(version, seed=""):
            shards = {rank: shard_of(version, rank, seed) for rank in range(group.ranks)}
            group.published[version] = shared.publish(version, shards)

        yield publish_version


@pytest.mark.slow
def test_a_group_is_updated_from_shared_memory_and_serves_what_was_shared(group, publish):
    publish(1)
    group.start()
    with group.controller() as controller:
        controller.update(1)
        group.await_steps()
        for version in range(2, 6):
            if version % 2:
                assert controller.clear().outcome is Outcome.CLEARED
            publish(version)
            receipt = controller.update(version)
            assert receipt.version == str(version)
            assert receipt.manifest_digest == group.published[version].manifest_digest
            assert {r.rank: r.digest for r in receipt.ranks} == group.published[version].digests
            group.await_steps()
        assert controller.update().version == "5"  # whichever is shared
    group.stop()
    group.assert_steps_are_pure([1, 2, 3, 4, 5])
    group.assert_journals_are_possible()


@pytest.fixture
def streamed(make_group, tmp_path):
    return make_group(
        config={"strategy": "ipc_async", "ipc_async": {"address": f"ipc://{tmp_path}/buckets"}}, load=0.5
    )


@pytest.mark.slow
@incident("dynamo#13912")
def test_a_group_is_updated_from_buckets_while_the_trainer_commands(streamed, tmp_path):
    group = streamed
    with BucketSender(f"ipc://{tmp_path}/buckets", bucket_bytes=1024, window_bytes=2048) as sender:
        group.start()
        with group.controller() as controller:
            for version in range(1, 6):
                if version == 3:
                    assert controller.clear().outcome is Outcome.CLEARED
                shards = {rank: shard_of(version, rank) for rank in range(group.ranks)}
                with sender.sending(version, shards) as sending:
                    receipt = controller.update(None if version == 5 else version)
                group.published[version] = sending.result()
                assert receipt.version == str(version)
                assert receipt.manifest_digest == sending.result().manifest_digest
                assert {r.rank: r.digest for r in receipt.ranks} == sending.result().digests
                group.await_steps()
        group.stop()
    group.assert_steps_are_pure([1, 2, 3, 4, 5])
    group.assert_journals_are_possible()


def test_what_a_trainer_hands_in_wrongly_fails_the_update_with_that_cause_and_the_old_version_serves(
    tmp_path,
):
    address = f"ipc://{tmp_path}/buckets"
    configuration = {"strategy": "ipc_async", "ipc_async": IpcAsyncConfig(address)}

    def runner(_rank):
        return InMemoryRunner([TensorSpec("w", "F32", (4,))])

    with (
        BucketSender(address, bucket_bytes=1024) as sender,
        LocalGroup(runner, tmp_path, load=None, configuration=configuration) as group,
    ):
        good = {rank: {"w": np.ones(4, "<f4")} for rank in range(2)}
        with sender.sending(1, good):
            group.update(1)
        wrong = {**good, 1: {"w": np.ones(4, ">f4")}}
        with pytest.raises(RankFailedError, match="byte order") as failed, sender.sending(2, wrong):
            group.update(2)
        assert matches(failed.value.__cause__, trainer_tensor)
        assert group.step() == "1"
        with sender.sending(2, good):
            assert group.update(2).serving


@pytest.mark.slow
def test_hot_updates_stage_from_shared_memory_and_from_buckets(group, publish, streamed, tmp_path):
    publish(1)
    group.start()
    with group.controller() as controller:
        controller.update(1)
        for version in (2, 3):
            publish(version)
            assert controller.update(version, hot=True).hot
            group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1, 2, 3])
    with BucketSender(f"ipc://{tmp_path}/buckets", bucket_bytes=1024, window_bytes=2048) as sender:
        streamed.start()
        with streamed.controller() as controller:
            for version in (1, 2, 3):
                shards = {rank: shard_of(version, rank) for rank in range(streamed.ranks)}
                with sender.sending(version, shards) as sending:
                    receipt = controller.update(version, hot=version > 1)
                streamed.published[version] = sending.result()
                assert receipt.hot == (version > 1)
                streamed.await_steps()
        streamed.stop()
    streamed.assert_steps_are_pure([1, 2, 3])


@pytest.mark.slow
def test_a_group_boots_by_version_yaml_and_is_updated_by_version_over_a_transport(make_group, tmp_path):
    sender = FakeSender(bucket_bytes=1024)
    group = make_group(
        config={
            "strategy": "rsync",
            "rsync": {
                "directory": str(tmp_path),
                "rsync_config": {"redis_host": "127.0.0.1", "redis_port": sender.port},
            },
        },
        load=0.5,
    )

    def send(version, publication="p{}"):
        digests = {}
        for rank in range(group.ranks):
            state = with_manifest(
                shard_of(version, rank),
                version=version,
                rank=rank,
                world_size=group.ranks,
                publication=publication.format(version, rank=rank),
            )
            manifest = StreamManifest.decode(bytes(state[MANIFEST_TENSOR]), file="ourselves")
            digests[rank] = manifest.content_digest
            sender.send(state, step_id=str(version), rank=rank)
        group.published[version] = SimpleNamespace(manifest_digest=manifest.group_digest, digests=digests)
        write_version(tmp_path, version)

    try:
        send(1)
        group.start()
        with group.controller() as controller:
            assert controller.update().version == "1"  # a boot: version.yaml says which
            group.await_steps()
            connections = sender.connected
            for version in (2, 3):
                send(version)
                receipt = controller.update(version)
                assert receipt.manifest_digest == group.published[version].manifest_digest
                group.await_steps()
            assert sender.connected == connections == group.ranks  # kept between updates
            with pytest.raises(WsmError, match="step 9 is not ready"):
                controller.update(9)
            group.await_steps()
            send(4, "came back before rank {rank}")
            with raising("manifest-mismatch", match="prepared different weights"):
                controller.update(4, hot=True)
            send(4)
            assert controller.update(4, hot=True).version == "4"
            group.await_steps()
        group.stop()
    finally:
        sender.close()
    group.assert_steps_are_pure([1, 2, 3, 4])
    group.assert_journals_are_possible()


@pytest.mark.slow
@pytest.mark.needs("mooncake")
def test_a_group_reads_its_versions_from_registered_memory(make_group, tmp_path):
    address = f"ipc://{tmp_path}/publisher"
    group = make_group(
        config={
            "strategy": "rsync",
            "rsync": {"transport": "mooncake"},
            "mooncake": {"address": address, "connect_s": 5.0},
        },
        load=0.5,
    )
    with MooncakePublisher(address) as publisher:

        def publishing(version):
            shards = {rank: shard_of(version, rank) for rank in range(group.ranks)}
            return publisher.publishing(version, shards)

        with publishing(1) as published:
            group.published[1] = published
            group.start()
            with group.controller() as controller:
                assert controller.update().version == "1"  # a boot: the publisher says which
            group.await_steps()
        with group.controller() as controller:
            for version in (2, 3):
                with publishing(version) as group.published[version]:
                    receipt = controller.update(version, hot=version == 3)
                assert receipt.manifest_digest == group.published[version].manifest_digest
                group.await_steps()
            with publishing(4), pytest.raises(WsmError, match="version 9 was asked for"):
                controller.update(9)
            group.await_steps()
        group.stop()
    group.assert_steps_are_pure([1, 2, 3])
    group.assert_journals_are_possible()
