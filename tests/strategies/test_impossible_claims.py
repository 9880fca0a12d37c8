"""What files and peers claim that cannot be is refused before anything is made of it, by a typed error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.raising import raising
from wsm.errors import BadInputError
from wsm.shared_directory import private_directory
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load
from wsm.strategies import errors as strategies_errors
from wsm.strategies.buckets import wire
from wsm.strategies.conversation import HEAD_BYTES, frame_of
from wsm.strategies.delta._manifest import DeltaShard, DeltaTensor
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.errors import UnreadableFileError
from wsm.strategies.files.safetensors import parse_header
from wsm.strategies.ipc.metas import IpcMetas, TensorPlace
from wsm.strategies.ipc.shared_segment import AttachedSegment, OwnedSegment
from wsm.strategies.mooncake import _lease_messages as mooncake_words
from wsm.strategies.mooncake._lease_messages import MemoryRegion
from wsm.strategies.mooncake.mooncake_transport import ReadPlan
from wsm.strategies.mooncake.publisher import PlacedShard, grants_of
from wsm.strategies.promise import PromisedTensor, seal, table_of
from wsm.strategies.snapshot.manifest import PartEntry, ShardManifest
from wsm.strategies.transports.stream_manifest import StreamManifest

DIGEST = "0" * 32
TENSOR = PromisedTensor(TensorSpec("w", "F32", (1,)), DIGEST)

#: Shapes that cannot be; a million long extents take minutes to multiply.
SHAPES = {
    "65 dimensions": [1] * 65,
    "an extent of 64 bits": [0, 1 << 63],
    "long extents": [10**4000] * 20,
}


def framed(message: object, change: Callable[[dict], object]) -> bytes:
    """A message between two processes whose fields are changed, as one that means it would frame it."""
    fields = json.loads(frame_of(message)[HEAD_BYTES:])
    change(fields)
    body = json.dumps(fields).encode()
    return bytes.fromhex(digest_of(body)) + body


def an_offer(shape: list[int]) -> object:
    segment = f"{wire.SEGMENT_PREFIX}{'0' * 16}"
    offer = wire.Init("1", 0, 1, "p", segment, 64, 1, False, (("w", "F32", (1,)),))
    said = framed(offer, lambda fields: fields["tensors"][0].__setitem__(2, shape))
    return wire.from_trainer(said, "a peer")


def a_grant(shape: list[int]) -> object:
    placed = PlacedShard((TENSOR,), (MemoryRegion(0, 64),), ((0, 0),))
    grant = grants_of("1", {0: placed}, publisher=DIGEST, session="127.0.0.1:9")[0]
    said = framed(grant, lambda fields: fields["promise"]["kinds"][0].update(shape=shape))
    return mooncake_words.check_grant(mooncake_words.answer_of(said, "a peer"), "a peer")


def a_file(shape: list[int]) -> object:
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    return parse_header(header, file="a file", file_bytes=8 + len(header) + 4)


WHOSE = {"version": "2", "rank": 0, "world_size": 1, "publication": "p"}
SEALED = (
    IpcMetas.with_tensors(
        [TENSOR],
        **WHOSE,
        group=(shard_digest([TENSOR[:2]]),),
        segments={"s": 64},
        places=(TensorPlace("s", 0),),
    ),
    ShardManifest(**WHOSE, device_id=0, parts=(PartEntry("f", 4, 1),), **table_of([TENSOR])),
    DeltaShard(
        **WHOSE,
        base_version="1",
        block_bytes=1 << 20,
        nbytes=0,
        tensors=(DeltaTensor("w", "F32", (1,), DIGEST, DIGEST, DIGEST, ()),),
    ),
    StreamManifest.with_tensors([TENSOR], **WHOSE),
)


def sealed(document: Any) -> Callable[[list[int]], object]:
    """A sealed document that says its one tensor, or its one kind of tensor, to be of a shape."""

    def says(shape: list[int]) -> object:
        fields = json.loads(document.encode())
        del fields["digest"]
        (fields.get("kinds") or fields["tensors"])[0]["shape"] = shape
        return type(document).decode(seal(fields), file="a document")

    assert says([1]) == document
    return says


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("says", [an_offer, a_grant, a_file, *map(sealed, SEALED)])
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
    with closing(OwnedSegment("wsm-test.", 1 << 16)) as owned:
        os.truncate(f"{private_directory()}/{owned.name}", 1 << 50)
        attached = AttachedSegment(owned.name, 1 << 50, prefixes=("wsm-test.",), referrer="the test")
        try:
            with pytest.raises(UnreadableFileError, match=f"{owned.name}: it cannot be mapped"):
                attached.memory(0, 1)
        finally:
            attached.close()


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
