"""Whatever happens to the files of a published version: a typed error, or exactly what was published."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsm.errors import BadInputError
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load, publish_snapshot
from wsm.strategies.tensor import ITEM_BYTES

SPECS = [TensorSpec("a", "F32", (5,)), TensorSpec("b", "BF16", (3, 2)), TensorSpec("c", "I64", ())]


def state(seed):
    return {spec.name: (spec, bytes([seed + index]) * spec.nbytes) for index, spec in enumerate(SPECS)}


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    for version in (1, 2):
        shards = {rank: state(10 * version + 100 * rank) for rank in range(2)}
        publish_snapshot(root, version, shards, part_bytes=20, durable=False)
    return root


def damage(draw, root: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".publisher.lock")
    path = draw(st.sampled_from([file for file in files if file.parent.name != "2"]))
    data = bytearray(path.read_bytes())
    kind = draw(st.sampled_from(["flip", "cut", "overwrite", "grow", "delete", "copy"]))
    if kind == "delete":
        path.unlink()
        return
    position = draw(st.integers(0, max(len(data) - 1, 0)))
    if kind == "flip" and data:
        data[position] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del data[position:]
    elif kind == "overwrite":
        data[position : position + 9] = draw(st.binary(max_size=9))
    elif kind == "grow":
        data += draw(st.binary(min_size=1, max_size=9))
    elif kind == "copy":
        data[:] = draw(st.sampled_from(files)).read_bytes()
    path.write_bytes(data)


@given(st.data(), st.integers(1, 3), st.sampled_from([None, 1]))
def test_a_damaged_version_is_refused_or_loads_as_it_was_published(two_versions, data, times, version):
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        shutil.copytree(two_versions, root)
        if version is None:
            (root / "version.yaml").write_text("step: 1\n")
        for _ in range(times):
            damage(data.draw, root)
        target = MemoryTarget(SPECS)
        source = SnapshotSource(root, 0, device_id=0, shared_directory=None)
        try:
            report = load(source, target, version=version)
        except BadInputError:
            return
        assert version is None or report.version == str(version)
        if report.verified:  # nothing but the manifests can know about flipped data
            loaded = {spec.name: bytes(target.readable(spec.name)) for spec in SPECS}
            assert loaded == {name: content for name, (_, content) in state(10 * int(report.version)).items()}


# -- whatever is published arrives bit by bit, however it is cut into parts ------------------------------


_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6).filter(
    lambda name: name != "__metadata__"
)
_shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def _states(draw):
    state = {}
    for name in draw(st.lists(_names, min_size=1, max_size=6, unique=True)):
        spec = TensorSpec(name, draw(st.sampled_from([*ITEM_BYTES])), draw(_shapes))
        state[name] = (spec, draw(st.binary(min_size=spec.nbytes, max_size=spec.nbytes)))
    return state


@given(_states(), st.integers(1, 300), st.integers(0, 3))
def test_any_state_dict_in_any_parts_is_loaded_as_it_was(state, part_bytes, device_id):
    with tempfile.TemporaryDirectory() as directory:
        published = publish_snapshot(
            directory, 1, {0: state}, device_ids={0: device_id}, part_bytes=part_bytes, durable=False
        )
        target = MemoryTarget(spec for spec, _ in state.values())
        report = load(SnapshotSource(directory, 0, device_id=device_id, shared_directory=None), target)
    assert {name: bytes(target.readable(name)) for name in state} == {
        name: data for name, (_, data) in state.items()
    }
    assert report.digest == published.digests[0]
    assert report.bytes == sum(spec.nbytes for spec, _ in state.values())
    assert len(report.files) == published.files
