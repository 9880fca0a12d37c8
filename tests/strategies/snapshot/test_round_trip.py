"""Whatever is published arrives bit by bit, however it is cut into parts."""

from __future__ import annotations

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load, publish_snapshot
from wsm.strategies.tensor import ITEM_BYTES

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
