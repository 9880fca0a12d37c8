"""One tensor under several names: applied once, compared where it comes again, refused where it differs."""

from __future__ import annotations

import pytest
from stamped import apply_tensors, of_bytes

from tests.raising import raising
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import digest_of
from wsm.strategies.observer import LoadObserver

EMBED = TensorSpec("embed", "U8", (6,))
BIAS = TensorSpec("bias", "U8", (2,))
TIED = {"head": "embed", "draft.head": "embed"}


def target():
    return MemoryTarget([EMBED, BIAS], tied=TIED)


def apply(tensors, into=None, **options):
    into = into or target()
    how = options.pop("declared", True)
    options.update(declared=how is True, collects=how == "collected")
    return apply_tensors(tensors if how is True else iter(tensors), into, LoadObserver(), **options), into


EVERYHOW = pytest.mark.parametrize("declared", [True, False, "collected"])


@EVERYHOW
def test_bytes_that_nobody_promised_are_compared_as_they_come(declared):
    into, data = (
        MemoryTarget([TensorSpec("w", "U8", (CHUNK_BYTES + 5,))], tied={"v": "w"}),
        bytes(CHUNK_BYTES + 4),
    )
    apply([of_bytes("w", data + b"1"), of_bytes("v", data + b"1")], into, declared=declared)
    with raising("tied-tensors-differ") as caught:
        apply([of_bytes("w", data + b"1"), of_bytes("v", data + b"2")], into, declared=declared)
    assert caught.value.touched
    assert (caught.value.tensor, caught.value.name, caught.value.origin) == ("w", "v", "a stream")


def test_digests_that_were_promised_are_compared_before_anything_is_touched():
    tensors = [
        of_bytes(name, data, digest=digest_of(data))
        for name, data in (("embed", b"111222"), ("head", b"111223"))
    ]
    into, tainted = target(), []
    with raising("tied-tensors-differ") as caught:
        apply_tensors(
            [*tensors, of_bytes("bias", b"34")], into, LoadObserver(taint=lambda: tainted.append(1))
        )
    assert not caught.value.touched
    assert not tainted
    assert list(into.held()) == []


@EVERYHOW
@pytest.mark.parametrize(
    ("again", "error"),
    [
        (of_bytes("head", b"111222", shape=(2, 3)), "shape-mismatch"),
        (of_bytes("head", b"111222", dtype="I8"), "dtype-mismatch"),
    ],
)
def test_another_shape_or_dtype_under_another_name_is_refused(again, error, declared):
    with raising(error, match="'embed'") as caught:
        apply([of_bytes("embed", b"111222"), again, of_bytes("bias", b"34")], declared=declared)
    assert caught.value.touched is not declared


@EVERYHOW
def test_one_name_twice_is_still_a_duplicate(declared):
    with raising(errors.not_covered) as caught:
        apply([*[of_bytes("head", b"111222")] * 2, of_bytes("bias", b"34")], declared=declared)
    assert caught.value.duplicate == ("embed",)


@EVERYHOW
def test_a_name_that_is_allowed_to_be_there_for_nothing_is_left_out(declared):
    tensors = [of_bytes("embed", b"111222"), of_bytes("head", b"other!"), of_bytes("bias", b"34")]
    _, into = apply(tensors, declared=declared, allowed_unknown=["head"])
    assert into.readable("embed") == b"111222"


def test_what_was_promised_for_a_stream_may_name_both():
    promised = [TensorSpec("head", "U8", (6,)), EMBED, BIAS]
    tensors = [of_bytes("embed", b"111222"), of_bytes("head", b"111222"), of_bytes("bias", b"34")]
    _, into = apply(tensors, declared=False, promised=promised)
    assert into.readable("embed") == b"111222"
    wrong = [TensorSpec("head", "U8", (6, 1)), EMBED, BIAS]
    with raising("shape-mismatch") as caught:
        apply(tensors, declared=False, promised=wrong)
    assert not caught.value.touched


@EVERYHOW
def test_a_partial_load_may_bring_a_tied_tensor_alone(declared):
    _, into = apply([of_bytes("embed", b"111222"), of_bytes("bias", b"34")])
    applied, _ = apply([of_bytes("head", b"333444")], into, declared=declared, partial=True)
    assert applied.missing == ("bias",)
    assert into.readable("embed") == b"333444"
