"""Partial loads: what they do not bring stays as it is, and must be there."""

from __future__ import annotations

import pytest
from stamped import apply_tensors, of_bytes

from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.observer import LoadObserver

A, B, EMPTY = TensorSpec("a", "U8", (3,)), TensorSpec("b", "U8", (2,)), TensorSpec("z", "U8", (0,))


@pytest.fixture
def target():
    made = MemoryTarget([A, B, EMPTY])
    for name, data in (("a", b"old"), ("b", b"ol"), ("z", b"")):
        made.writable(name)[:] = data
    return made


@pytest.mark.parametrize("declared", [True, False])
def test_a_tensor_that_is_not_brought_and_holds_nothing_is_an_error_before_anything_is_touched(declared):
    tainted = []
    target = MemoryTarget([A, B])
    target.writable("b")[:] = b"ol"
    with raising("partial-load-refused", match="leaves 'a' as it is") as caught:
        apply_tensors(
            iter([of_bytes("b", b"22")]),
            target,
            LoadObserver(taint=lambda: tainted.append(True)),
            declared=declared,
            partial=True,
        )
    assert caught.value.tensor == "a"
    assert tainted == []
    assert bytes(target.readable("b")) == b"ol"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("tensors", "text"),
    [([], "3 missing"), ([of_bytes("c", b"1")], "1 unknown"), ([of_bytes("b", b"22")] * 2, "1 duplicate")],
)
def test_a_partial_load_is_strict_about_everything_else(target, declared, tensors, text):
    with raising(errors.not_covered, match=text):
        apply_tensors(iter(tensors), target, LoadObserver(), declared=declared, partial=True)


def test_a_whole_version_may_come_as_a_partial_load(target):
    tensors = [of_bytes("a", b"111"), of_bytes("b", b"22"), of_bytes("z", b"")]
    applied = apply_tensors(tensors, target, LoadObserver(), partial=True)
    assert applied.missing == ()
    assert bytes(target.readable("a")) == b"111"
