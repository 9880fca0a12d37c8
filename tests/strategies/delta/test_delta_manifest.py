"""Manifests of deltas: any bytes, and any sealed document, are a manifest or a typed error."""

from __future__ import annotations

import json

import pytest
from delta_directory import A, B, Directory
from hypothesis import given, settings
from hypothesis import strategies as st

from wsm.strategies.delta._manifest import DeltaManifest, DeltaShard
from wsm.strategies.documents import seal
from wsm.strategies.errors import ManifestError

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1 << 70) | st.floats(0, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    directory = Directory(tmp_path_factory.mktemp("deltas"))
    directory.whole(1, A)
    directory.delta(2, 1, B)
    files = directory.path / "deltas/2"
    return {
        DeltaShard: (files / "delta.tp0.manifest.json").read_bytes(),
        DeltaManifest: (files / "delta.manifest.json").read_bytes(),
    }


@pytest.mark.parametrize("kind", [DeltaShard, DeltaManifest])
def test_a_manifest_is_read_as_it_was_written(documents, kind):
    manifest = kind.decode(documents[kind], file="manifest")
    assert manifest.encode() == documents[kind]


@pytest.mark.parametrize("kind", [DeltaShard, DeltaManifest])
@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=60), at=st.integers(0, 1 << 16), cut=st.booleans())
def test_any_damage_is_a_typed_error(documents, kind, data, at, cut):
    whole = documents[kind]
    at %= len(whole)
    damaged = whole[:at] + data + (b"" if cut else whole[at + len(data) :])
    if damaged.strip() == whole.strip():
        return
    with pytest.raises(ManifestError):
        kind.decode(damaged, file="manifest")


@pytest.mark.parametrize("kind", [DeltaShard, DeltaManifest])
@settings(deadline=None, max_examples=150)
@given(choice=st.randoms(use_true_random=False), value=_PLAIN)
def test_any_sealed_document_is_a_manifest_or_a_typed_error(documents, kind, choice, value):
    fields = json.loads(documents[kind])
    place = fields
    while True:  # some way down, one value is replaced
        key = choice.choice(sorted(place)) if isinstance(place, dict) else choice.randrange(len(place))
        below = place[key]
        if not isinstance(below, (dict, list)) or not below or choice.random() < 0.2:
            place[key] = value
            break
        place = below
    try:
        found = kind.decode(seal(fields), file="manifest")
    except ManifestError:
        return
    assert kind.decode(found.encode(), file="manifest") == found
