from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsm.strategies import ShardManifest, TensorSpec, VersionManifest, errors
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.manifest import PartEntry, TensorEntry
from wsm.strategies.sealed_json import seal
from wsm.strategies.version_manifest import ShardEntry

DIGEST = digest_of(b"x")


def shard(**changes) -> ShardManifest:
    fields = {
        "version": 3,
        "rank": 0,
        "world_size": 2,
        "device_id": 0,
        "publication": "p",
        "parts": (PartEntry("a.pdparams", 10), PartEntry("b.pdparams", 20)),
        "tensors": (
            TensorEntry(TensorSpec("x", "BF16", (2, 3)), DIGEST, 0),
            TensorEntry(TensorSpec("y", "F32", ()), DIGEST, 1),
        ),
    }
    return ShardManifest(**{**fields, **changes})


def fields_of(manifest) -> dict:
    return json.loads(manifest.encode())


def sealed(fields: dict) -> bytes:
    return seal({key: value for key, value in fields.items() if key != "digest"})


def test_a_manifest_is_read_back_as_it_was_written():
    manifest = shard()
    assert ShardManifest.decode(manifest.encode(), file="m") == manifest
    whole = VersionManifest(3, "p", (ShardEntry("a.manifest.json", DIGEST, DIGEST),) * 2)
    assert VersionManifest.decode(whole.encode(), file="m") == whole


def test_equal_manifests_have_equal_bytes_and_digests():
    assert shard().encode() == shard().encode()
    assert fields_of(shard())["digest"] == shard().digest
    assert shard().digest != shard(publication="q").digest
    assert shard().content_digest == shard(publication="q").content_digest


def test_the_digest_of_a_shard_depends_on_every_fact_and_on_no_order():
    tensors = [(TensorSpec("a", "F32", (2,)), DIGEST), (TensorSpec("b", "F32", (2,)), digest_of(b"y"))]
    digest = shard_digest(tensors)
    assert shard_digest(tensors[::-1]) == digest
    for name, dtype, shape, content in [
        ("c", "F32", (2,), b"x"),
        ("a", "I32", (2,), b"x"),
        ("a", "F32", (2, 1), b"x"),
        ("a", "F32", (2,), b"z"),
    ]:
        assert shard_digest([(TensorSpec(name, dtype, shape), digest_of(content)), tensors[1]]) != digest


def test_an_edited_manifest_is_found_by_its_seal():
    data = shard().encode().replace(b'"version":3', b'"version":4')
    with pytest.raises(errors.ManifestError, match="damaged or edited"):
        ShardManifest.decode(data, file="m")


def test_a_truncated_or_empty_manifest_is_refused():
    for data in (b"", shard().encode()[:-10], b"null", b"[]", b"{}"):
        with pytest.raises(errors.ManifestError):
            ShardManifest.decode(data, file="m")


def test_another_layout_is_refused_and_says_so():
    with pytest.raises(errors.ManifestError, match="layout is not 1"):
        ShardManifest.decode(sealed({**fields_of(shard()), "layout": 2}), file="m")


def test_one_kind_of_manifest_is_not_taken_for_the_other():
    with pytest.raises(errors.ManifestError, match="format is not"):
        VersionManifest.decode(shard().encode(), file="m")


TENSOR = fields_of(shard())["tensors"][0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": -1}, "'version'"),
        ({"version": 1 << 40}, "'version'"),
        ({"version": "3"}, "'version'"),
        ({"rank": True}, "'rank'"),
        ({"rank": 2}, "rank 2 of 2"),
        ({"publication": 7}, "'publication'"),
        ({"publication": "\ud800"}, "'publication'"),
        ({"parts": {}}, "'parts'"),
        ({"parts": [7]}, "object"),
        ({"parts": [{"file": "../a", "bytes": 1}]}, "'file'"),
        ({"parts": [{"file": "..", "bytes": 1}]}, "'file'"),
        ({"parts": [{"file": "a\0", "bytes": 1}]}, "'file'"),
        ({"parts": [{"file": "a", "bytes": 1}, {"file": "a", "bytes": 1}]}, "a part twice"),
        ({"parts": []}, "a part that it does not list"),
        ({"tensors": []}, "no tensor"),
        ({"tensors": [TENSOR, TENSOR]}, "a tensor twice"),
        ({"tensors": [{**TENSOR, "dtype": "F4"}]}, "'dtype'"),
        ({"tensors": [{**TENSOR, "shape": [-1]}]}, "'shape'"),
        ({"tensors": [{**TENSOR, "digest": "00"}]}, "'digest'"),
        ({"tensors": [{**TENSOR, "part": 2}]}, "a part that it does not list"),
        ({"content_digest": DIGEST}, "content_digest"),
    ],
)
def test_a_sealed_manifest_that_makes_no_sense_is_refused(change, problem):
    with pytest.raises(errors.ManifestError, match=problem):
        ShardManifest.decode(sealed({**fields_of(shard()), **change}), file="m")


def test_a_version_without_shards_makes_no_sense():
    with pytest.raises(errors.ManifestError, match="no shard"):
        VersionManifest.decode(VersionManifest(3, "p", ()).encode(), file="m")


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 1 << 70)
    | st.floats()
    | st.text(max_size=4)
    | st.just(DIGEST),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_manifest_or_a_typed_error(data):
    for kind in (ShardManifest, VersionManifest):
        with pytest.raises(errors.ManifestError):
            kind.decode(data, file="m")


@given(st.dictionaries(st.sampled_from([*fields_of(shard())]), _json, max_size=3), st.booleans())
def test_any_content_under_a_good_seal_gives_a_manifest_or_a_typed_error(changes, inner):
    fields = fields_of(shard())
    if inner:
        fields["tensors"][0].update({key: value for key, value in changes.items() if key != "tensors"})
    else:
        fields.update(changes)
    try:
        manifest = ShardManifest.decode(sealed(fields), file="m")
    except errors.ManifestError:
        return
    assert ShardManifest.decode(manifest.encode(), file="m") == manifest
