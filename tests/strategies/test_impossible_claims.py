"""What files and peers claim that cannot be is refused before anything is made of it, by a typed error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from small_state import make_state

from tests.raising import raising
from wsm.errors import BadInputError
from wsm.private_directory import private_directory
from wsm.strategies import (
    MemoryTarget,
    SharedTensors,
    SnapshotSource,
    TensorSpec,
    load,
    publish_delta,
    publish_snapshot,
)
from wsm.strategies import errors as strategies_errors
from wsm.strategies.buckets import wire
from wsm.strategies.delta._manifest import DeltaShard
from wsm.strategies.delta.source import DeltaSource
from wsm.strategies.digest import digest_of
from wsm.strategies.errors import UnreadableFileError
from wsm.strategies.files.safetensors import parse_header
from wsm.strategies.ipc.metas import IpcMetas
from wsm.strategies.ipc.shared_segment import AttachedSegment, OwnedSegment
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.mooncake import _lease_messages as mooncake_words
from wsm.strategies.mooncake._lease_messages import MemoryRegion
from wsm.strategies.mooncake.mooncake_transport import ReadPlan
from wsm.strategies.promise import seal
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.transports.stream_manifest import StreamManifest

DIGEST = "0" * 32

#: Shapes that cannot be; a million long extents take minutes to multiply.
SHAPES = {
    "65 dimensions": [1] * 65,
    "an extent of 64 bits": [0, 1 << 63],
    "long extents": [10**4000] * 20,
}


def an_offer(shape: list[int]) -> object:
    fields = {
        "type": "init",
        "version": "1",
        "rank": 0,
        "world_size": 1,
        "publication": "p",
        "segment": f"{wire.SEGMENT_PREFIX}{'0' * 16}",
        "bucket_bytes": 64,
        "slots": 1,
        "finite": False,
        "tensors": [["w", "F32", shape]],
    }
    body = json.dumps(fields).encode()
    offer = wire.from_trainer(bytes.fromhex(digest_of(body)) + body, "a peer")
    return wire.specs_of(offer, "a peer")


def a_grant(shape: list[int]) -> object:
    fields = {
        "type": "grant",
        "promise": {
            "version": "1",
            "rank": 0,
            "world_size": 1,
            "publication": "p",
            "kinds": [{"dtype": "F32", "shape": shape}],
            "tensors": [["w", 0, DIGEST]],
        },
        "publication": {"version": "1", "publication": "p", "shards": [{"content_digest": DIGEST}]},
        "publisher": DIGEST,
        "session": "127.0.0.1:9",
        "regions": [[0, 64]],
        "places": [[0, 0]],
    }
    body = json.dumps(fields).encode()
    frame = bytes.fromhex(digest_of(body)) + body
    return mooncake_words.check_grant(mooncake_words.answer_of(frame, "a peer"), "a peer")


def a_file(shape: list[int]) -> object:
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    return parse_header(header, file="a file", file_bytes=8 + len(header) + 4)


def metas(shape: list[int]) -> object:
    fields = {
        "format": "wsm.ipc-metas",
        "layout": 2,
        "version": 1,
        "rank": 0,
        "world_size": 1,
        "publication": "p",
        "group": [DIGEST],
        "segments": {"s": 64},
        "kinds": [{"dtype": "F32", "shape": shape, "placement": None}],
        "tensors": [["w", 0, DIGEST]],
        "places": [["s", 0, -1]],
    }
    return IpcMetas.decode(seal(fields), file="metas")


def a_shard(shape: list[int]) -> object:
    kinds = [{"dtype": "F32", "shape": shape, "placement": None}]
    fields = {
        "format": "wsm.shard-manifest",
        "layout": 2,
        "version": 1,
        "rank": 0,
        "world_size": 1,
        "device_id": 0,
        "publication": "p",
        "content_digest": DIGEST,
        "parts": [{"file": "f", "bytes": 4, "tensors": 1}],
        "kinds": kinds,
        "tensors": [["w", 0, DIGEST]],
    }
    return ShardManifest.decode(seal(fields), file="a manifest")


def a_delta(shape: list[int]) -> object:
    row = {"name": "w", "dtype": "F32", "shape": shape, "blocks": []}
    fields = {
        "format": "wsm.delta-shard-manifest",
        "layout": 1,
        "version": 2,
        "base_version": 1,
        "rank": 0,
        "world_size": 1,
        "publication": "p",
        "block_bytes": 1 << 20,
        "bytes": 0,
        "tensors": [{**row, "base_digest": DIGEST, "digest": DIGEST, "stored_digest": DIGEST}],
    }
    return DeltaShard.decode(seal(fields), file="a delta")


def a_stream(shape: list[int]) -> object:
    fields = {
        "format": "wsm.stream-manifest",
        "layout": 2,
        "version": 1,
        "rank": 0,
        "world_size": 1,
        "publication": "p",
        "content_digest": DIGEST,
        "kinds": [{"dtype": "F32", "shape": shape}],
        "tensors": [["w", 0, DIGEST]],
    }
    return StreamManifest.decode(seal(fields), file="a peer")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("says", [an_offer, a_grant, a_file, metas, a_shard, a_delta, a_stream])
def test_a_shape_that_no_tensor_has_is_refused_where_it_is_read(says: Callable, shape):
    with pytest.raises(BadInputError, match=r"shape|tensors|layout|dims"):
        says(shape)


def test_reads_of_any_number_of_bytes_are_planned_without_listing_them():
    plan = ReadPlan([MemoryRegion(64, 3), MemoryRegion(1 << 40, 1 << 62)], span_bytes=4)
    assert plan.spans == 1 + (1 << 60)
    assert plan.span(0) == MemoryRegion(64, 3)
    assert plan.span(1 << 60) == MemoryRegion((1 << 40) + (1 << 62) - 4, 4)
    assert plan.where(1, (1 << 62) - 1) == (1 << 60, 3)


def test_memory_that_cannot_be_mapped_is_said_to_be_so():
    with OwnedMemory() as owned:
        os.truncate(f"{private_directory()}/{owned.name}", 1 << 50)
        attached = AttachedSegment(owned.name, 1 << 50, prefixes=("wsm-test.",), referrer="the test")
        try:
            with pytest.raises(UnreadableFileError, match=f"{owned.name}: it cannot be mapped"):
                attached.memory(0, 1)
        finally:
            attached.close()


class OwnedMemory:
    """A segment for the time of a test."""

    def __enter__(self) -> OwnedSegment:
        self._owned = OwnedSegment("wsm-test.", 1 << 16)
        return self._owned

    def __exit__(self, *_: object) -> None:
        self._owned.close()


def test_metas_of_device_memory_are_refused_by_a_cpu_build_before_anything_is_touched(tmp_path):
    state = make_state()
    with SharedTensors(tmp_path) as shared:
        shared.publish(1, {0: state})
        file = tmp_path / "ipc_metas_0"
        fields = json.loads(file.read_text())
        del fields["digest"]
        at = [name for name, *_ in fields["tensors"]].index("head.weight")
        fields["places"][at][2] = 0
        file.write_bytes(seal(fields))
        target, tainted = MemoryTarget(spec for spec, _ in state.values()), []
        with raising("bad-device-meta", match=r"'head\.weight'") as caught:
            load(IpcSource(tmp_path, 0, device_id=0), target, name="ipc", taint=lambda: tainted.append(1))
        assert not tainted
        assert not caught.value.touched


def test_what_a_file_says_of_itself_does_not_make_a_message_endless(tmp_path, plain):
    plain("model_state.tp0.0.pdparams", {"n" * 1_000_000: ("F32", (1,), bytes(4))})
    with raising(strategies_errors.not_covered, match=r"1000023 characters|characters \.\.\.\]") as caught:
        load_from(tmp_path)
    assert len(str(caught.value)) < 10_000
    assert caught.value.unknown == ("n" * 1_000_000,)
    assert str(caught.value).endswith("publish the state dict of this very model and rank")


def load_from(directory: Path) -> None:
    source = SnapshotSource(directory, 0, device_id=0, shared_directory=None)
    load(source, MemoryTarget([TensorSpec("w", "F32", (1,))]))


LARGE = {
    "a": (TensorSpec("a", "U8", (3 << 20,)), bytes(3 << 20)),
    "b": (TensorSpec("b", "U8", (9,)), bytes(9)),
}
CHANGED = {name: (spec, bytes([1]) * spec.nbytes) for name, (spec, _) in LARGE.items()}


@pytest.mark.parametrize("way", ["ipc_snapshot", "ipc", "delta"])
def test_what_is_cut_short_while_it_is_read_is_a_typed_error_and_a_good_version_loads_afterwards(
    tmp_path, way
):
    target, tainted = MemoryTarget(spec for spec, _ in LARGE.values()), []
    with SharedTensors(tmp_path) as shared:
        if way == "ipc":
            shared.publish(1, {0: LARGE})
            source = IpcSource(tmp_path, 0, device_id=0, adopt=False)
            (name,) = IpcMetas.decode((tmp_path / "ipc_metas_0").read_bytes(), file="metas").segments
            file = private_directory() / name
        else:
            publish_snapshot(tmp_path, 1, {0: LARGE}, durable=False)
            source = SnapshotSource(tmp_path, 0, device_id=0, shared_directory=None)
            file = tmp_path / "versions/1/model_state.tp0.0.part0.pdparams"
        if way == "delta":
            load(source, target, version=1)
            report = publish_delta(
                tmp_path, 2, 1, {0: CHANGED}, base={0: LARGE}, crossover=2.0, durable=False
            )
            source, file = DeltaSource(tmp_path, 0, device_id=0), Path(report.path) / "delta.tp0.blocks"

        def cut(_done: int, _total: int) -> None:
            os.truncate(file, 0)

        with raising((strategies_errors.bad_file_size, BadInputError), match=str(file)) as caught:
            load(
                source,
                target,
                name=way,
                version=2 if way == "delta" else 1,
                progress=cut,
                threads=1,
                taint=lambda: tainted.append(way),
            )
        assert caught.value.touched == bool(tainted)
        if way == "ipc":
            shared.publish(3, {0: CHANGED})
        else:
            publish_snapshot(tmp_path, 3, {0: CHANGED}, durable=False)
        load(source, target, name=way, version=3)
        assert all(target.readable(name) == data for name, (_, data) in CHANGED.items())
