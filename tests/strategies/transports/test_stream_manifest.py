"""What a stream promises, and what all ranks of one publication have in common."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.raising import raising
from wsm.strategies import TensorSpec, errors, with_manifest
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest

STATE = {
    "a": (TensorSpec("a", "F32", (2, 3)), bytes(24)),
    "b": (TensorSpec("b", "BF16", ()), b"ab"),
}
WRITTEN = bytes(with_manifest(STATE, version=7, rank=1, world_size=2, publication="p")[MANIFEST_TENSOR])


def test_a_whole_model_is_every_rank_s():
    data = bytes(with_manifest(STATE, version=7)[MANIFEST_TENSOR])
    manifest = StreamManifest.decode(data, file="the trainer")
    assert manifest.whole
    assert not StreamManifest.decode(WRITTEN, file="the trainer").whole


def manifest_of(state, **options):
    data = bytes(with_manifest(state, version=7, **options)[MANIFEST_TENSOR])
    return StreamManifest.decode(data, file="the trainer")


@pytest.mark.parametrize("options", [{}, {"rank": 0, "world_size": 1}], ids=["whole model", "one rank"])
def test_two_different_states_of_one_version_have_two_group_digests(options):
    spec, data = STATE["a"]
    other = manifest_of({**STATE, "a": (spec, bytes([data[0] ^ 1, *data[1:]]))}, **options)
    assert other.group_digest != manifest_of(STATE, **options).group_digest
    assert manifest_of(STATE, **options).group_digest is not None
    assert manifest_of(STATE, **options, publication="again").group_digest == manifest_of(STATE).group_digest


def test_shards_of_one_version_have_one_group_digest_iff_they_are_of_one_publication():
    first, second, later = (
        manifest_of(STATE, rank=rank, world_size=2, publication=publication).group_digest
        for rank, publication in ((0, "p"), (1, "p"), (1, "q"))
    )
    assert first == second != later


def test_a_shard_of_several_needs_its_publication_s_name_and_speaks_for_itself_without_one():
    with raising(errors.incomplete_publication, match=r"rank 1 of 2 needs the publication's name"):
        with_manifest(STATE, version=7, rank=1, world_size=2)
    unnamed = replace(manifest_of(STATE, rank=1, world_size=2, publication="p"), publication="")
    assert unnamed.group_digest is None  # of an older trainer


@pytest.mark.parametrize(("rank", "world_size"), [(1, None), (None, 2)])
def test_a_rank_without_a_world_or_a_world_without_a_rank_cannot_be_written(rank, world_size):
    with raising(errors.trainer_tensor):
        with_manifest(STATE, version=7, rank=rank, world_size=world_size)
