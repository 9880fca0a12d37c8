"""Tensors that are known only as they come: checked one by one, before they are written."""

from __future__ import annotations

import pytest
from stamped import apply_tensors, of_bytes

from tests.raising import raising
from wsm.errors import WsmError
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.applier.coverage import RunningCoverage
from wsm.strategies.digest import digest_of
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor

A, B = TensorSpec("a", "U8", (3,)), TensorSpec("b", "U8", (2,))


class Rank:
    """A target with weights, and whether anybody was told that they are no longer whole."""

    def __init__(self):
        self.target = MemoryTarget([A, B])
        self.target.writable("a")[:] = b"old"
        self.target.writable("b")[:] = b"ol"
        self.tainted = 0

    def apply(self, tensors, **options):
        observer = LoadObserver(taint=self._taint, progress=options.pop("progress", lambda *_: None))
        return apply_tensors(iter(tensors), self.target, observer, declared=False, **options)

    def holds(self, a, b):
        return (bytes(self.target.readable("a")), bytes(self.target.readable("b"))) == (a, b)

    def _taint(self):
        self.tainted += 1


def test_memory_is_used_again_for_the_next_tensor_once_it_is_asked_for():
    def stream():
        buffer = bytearray(3)
        for spec, data in ((A, b"111"), (B, b"22")):
            view = memoryview(buffer)[: len(data)]
            view[:] = data
            yield OfferedTensor.of_bytes(spec, "a stream", view)
            buffer[:] = b"xxx"

    rank = Rank()
    rank.apply(stream())
    assert rank.holds(b"111", b"22")


WRONGS = [
    (of_bytes("c", b"3"), errors.not_covered, "1 unknown: 'c'"),
    (of_bytes("b", b"22", dtype="I8"), "dtype-mismatch", "'b' has dtype I8 in a stream"),
    (of_bytes("b", b"22", shape=(2, 1)), "shape-mismatch", r"'b' has shape \(2, 1\) in a stream"),
]


@pytest.mark.parametrize(
    ("wrong", "error", "text"), [*WRONGS, (of_bytes("a", b"333"), errors.not_covered, "1 duplicate: 'a'")]
)
def test_a_later_tensor_that_does_not_fit_is_not_written_and_the_error_says_touched(wrong, error, text):
    rank = Rank()
    with raising(error, match=text) as caught:
        rank.apply([of_bytes("a", b"111"), wrong])
    assert caught.value.touched
    assert "ended part way" in str(caught.value)
    assert rank.tainted == 1
    assert rank.holds(b"111", b"ol")


@pytest.mark.parametrize("wrong", [*(row[0] for row in WRONGS), of_bytes("a", b"333"), None])
def test_where_the_stream_is_collected_first_nothing_that_is_wrong_with_it_touches_the_target(wrong):
    rank = Rank()
    with pytest.raises(WsmError) as caught:
        rank.apply([of_bytes("a", b"111"), *([] if wrong is None else [wrong])], collects=True)
    assert not caught.value.context["touched"]
    assert "ended part way" not in str(caught.value)
    assert (rank.tainted, rank.holds(b"old", b"ol")) == (0, True)


def test_bytes_that_are_not_what_was_promised_are_found_while_they_are_collected():
    rank = Rank()
    lie = of_bytes("b", b"22", digest=digest_of(b"23"))
    with raising(errors.DigestMismatchError) as caught:
        rank.apply([of_bytes("a", b"111"), lie], collects=True)
    assert (caught.value.touched, rank.tainted, rank.holds(b"old", b"ol")) == (False, 0, True)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stream_that_was_collected_is_applied_like_any_other_and_its_memory_may_be_used_again(threads):
    def stream():
        buffer = bytearray(3)
        for spec, data, digest in ((B, b"22", digest_of(b"22")), (A, b"111", None)):
            buffer[: len(data)] = data
            yield OfferedTensor.of_bytes(spec, "a stream", memoryview(buffer)[: len(data)], digest)
            buffer[:] = b"xxx"

    rank, seen = Rank(), []
    applied = rank.apply(
        stream(), collects=True, threads=threads, progress=lambda *pair: seen.append((*pair, rank.tainted))
    )
    assert rank.holds(b"111", b"22")
    assert (applied.bytes, applied.tensors, applied.verified) == (5, 2, 1)
    assert seen == [(0, 5, 0), (0, 5, 0), (2, 5, 1), (5, 5, 1)]  # it shows that it lives while it collects


def test_what_is_allowed_by_name_is_left_out_and_does_not_count_as_touching():
    rank = Rank()
    applied = rank.apply(
        [of_bytes("x", b"9"), of_bytes("a", b"111"), of_bytes("b", b"22")], allowed_unknown=["x"]
    )
    assert applied.tensors == 2
    coverage = RunningCoverage({"a": A}, allowed_unknown=["x"])
    assert not coverage.admits(TensorSpec("x", "U8", (1,)), "a stream")
    with raising(errors.not_covered):
        coverage.finish()


def test_an_error_of_the_stream_ends_the_load_as_it_is():
    def stream():
        yield of_bytes("a", b"111")
        raise ConnectionResetError("gone")

    rank = Rank()
    with pytest.raises(ConnectionResetError, match="gone"):
        rank.apply(stream())
    assert rank.tainted == 1


def test_an_undeclared_offer_does_not_say_how_much_it_holds():
    tensor = of_bytes("a", b"111")
    declared = Offer(None, (tensor,), (), None, ManifestScope.LOADED)
    assert (declared.known, declared.nbytes) == ((tensor,), 3)
    stream = Offer(None, iter([tensor]), (), None, ManifestScope.LOADED, declared=False)
    assert (stream.known, stream.nbytes) == (None, None)
    assert list(stream.tensors) == [tensor]
