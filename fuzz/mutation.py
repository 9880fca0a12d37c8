"""Damage to good samples, drawn by Hypothesis: to their bytes, and to the values of their JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from fuzz.invariant import Format

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.sampled_from([1 << 31, 1 << 62, 1 << 63, 1 << 70, -1, 1 << 40])
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["", "F32", "BF16", "..", "a/b", "a\0", "0" * 32, "\ud800"])
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def damaged(form: Format) -> st.SearchStrategy[bytes]:
    """Return a strategy for bytes near the samples of `form`, and for bytes that are near nothing."""
    return st.binary(max_size=200) | _near_bytes(form) | _near_json(form)


@st.composite
def _near_bytes(draw: st.DrawFn, form: Format) -> bytes:
    data = bytearray(draw(st.sampled_from(form.samples)))
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(["flip", "cut", "insert", "overwrite", "repeat"]))
        if what == "flip" and position < len(data):
            data[position] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del data[position : position + draw(st.integers(1, 64))]
        elif what == "insert":
            data[position:position] = draw(st.binary(max_size=9))
        elif what == "overwrite":
            data[position : position + 4] = draw(st.binary(min_size=1, max_size=4))
        elif what == "repeat":
            data[position:position] = data[position : position + draw(st.integers(1, 64))]
    return bytes(data)


@st.composite
def _near_json(draw: st.DrawFn, form: Format) -> bytes:
    """Change values within the JSON of a sample; samples without JSON are left as they are."""
    sample = draw(st.sampled_from(form.samples))
    begin = sample.find(b"{")
    try:
        document = json.loads(sample[begin:]) if begin >= 0 else None
    except ValueError:
        document = None
    if document is None:
        return sample
    for _ in range(draw(st.integers(1, 3))):
        document = _changed(draw, document, 0)
    return sample[:begin] + json.dumps(document).encode()


def _changed(draw: st.DrawFn, value: Any, depth: int) -> Any:
    """Go down a drawn way and change what is there."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        how = draw(st.sampled_from(["within", "within", "within", "drop", "rename"]))
        if how == "within":
            return {**value, key: _changed(draw, value[key], depth + 1)}
        rest = {name: item for name, item in value.items() if name != key}
        return rest if how == "drop" else {**rest, draw(st.text(max_size=4)): value[key]}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        index = draw(st.integers(0, len(value) - 1))
        how = draw(st.sampled_from(["within", "within", "drop", "twice"]))
        if how == "within":
            return [*value[:index], _changed(draw, value[index], depth + 1), *value[index + 1 :]]
        return value[:index] + value[index : index + 1] * (2 if how == "twice" else 0) + value[index + 1 :]
    return draw(_values)
