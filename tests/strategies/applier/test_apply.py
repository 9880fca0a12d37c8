"""The applier: checks before the first byte, taint before the first touch, nothing past a cancellation."""

from __future__ import annotations

import pytest
from stamped import apply_tensors

from tests.incident import incident
from tests.raising import raising
from wsm import TensorReleasedError
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.applier.coverage import check_coverage
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import digest_of
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor


def offered(name, data, *, dtype="U8", shape=None, digest=None, events=None):
    def read_into(offset, destination):
        if events is not None:
            events.append(f"read {name} at {offset}")
        destination[:] = data[offset : offset + len(destination)]

    spec = TensorSpec(name, dtype, (len(data),) if shape is None else shape)
    return OfferedTensor(spec, "somewhere", read_into, digest)


class LoggingTarget(MemoryTarget):
    def __init__(self, specs, events):
        super().__init__(specs)
        self._events = events

    def writable(self, name):
        self._events.append(f"writable {name}")
        return super().writable(name)


A, B = TensorSpec("a", "U8", (3,)), TensorSpec("b", "U8", (2,))


def test_the_target_is_tainted_before_its_memory_is_asked_for_and_once_only():
    events = []
    target = LoggingTarget([A, B], events)
    observer = LoadObserver(taint=lambda: events.append("taint"))
    apply_tensors([offered("a", b"111", events=events), offered("b", b"22", events=events)], target, observer)
    assert events == ["taint", "writable a", "read a at 0", "writable b", "read b at 0"]


def test_one_error_lists_everything_that_is_missing_unknown_and_duplicate():
    specs = {name: TensorSpec(name, "U8", (1,)) for name in "abcdefghijklm"}
    rows = [(TensorSpec(name, "U8", (1,)), "f") for name in ("a", "a", "x", "y")]
    with raising(errors.not_covered) as caught:
        check_coverage(rows, specs)
    assert caught.value.missing == tuple("bcdefghijklm")
    assert caught.value.unknown == ("x", "y")
    assert caught.value.duplicate == ("a",)
    for text in ("12 missing: 'b', 'c'", "and 6 more", "2 unknown: 'x', 'y'", "1 duplicate: 'a'"):
        assert text in str(caught.value)


@incident("FastDeploy#6052")
def test_all_mismatches_are_listed_with_both_sides_and_their_file():
    wanted = {"a": TensorSpec("a", "F32", (2,)), "b": TensorSpec("b", "F32", (2,))}
    rows = [(TensorSpec("a", "BF16", (2,)), "f1"), (TensorSpec("b", "F16", (2,)), "f2")]
    with raising("dtype-mismatch") as dtypes:
        check_coverage(rows, wanted)
    assert dtypes.value.mismatches == (("a", "F32", "BF16", "f1"), ("b", "F32", "F16", "f2"))
    with raising("shape-mismatch", match=r"'a' has shape \(2, 1\) in f1, the model has \(2,\)"):
        check_coverage([(TensorSpec("a", "F32", (2, 1)), "f1")], {"a": wanted["a"]})


def test_unknown_names_may_be_allowed_by_name_and_are_not_read():
    events = []
    target = MemoryTarget([A])
    applied = apply_tensors(
        [offered("a", b"111"), offered("extra", b"9", events=events)],
        target,
        LoadObserver(),
        allowed_unknown=["extra"],
    )
    assert applied.tensors == 1
    assert events == []


@pytest.mark.parametrize("after", [1, CHUNK_BYTES])
def test_a_cancellation_stops_between_tensors_and_between_chunks(after):
    size = 2 * CHUNK_BYTES
    done = 0

    def progress(so_far, total):
        nonlocal done
        done = so_far
        assert total == size + 1

    observer = LoadObserver(progress=progress, cancelled=lambda: done >= after)
    target = MemoryTarget([TensorSpec("s", "U8", (1,)), TensorSpec("l", "U8", (size,))])
    with raising(errors.LoadCancelledError) as caught:
        apply_tensors([offered("s", b"1"), offered("l", bytes(size))], target, observer)
    assert caught.value.touched
    assert caught.value.tensors_applied == 1
    assert done < size


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        (memoryview(bytes(3)), "read-only"),
        (memoryview(bytearray(4)), "4 bytes instead of 3"),
        (memoryview(bytearray(3)).cast("b"), "not a flat view"),
        (memoryview(bytearray(6))[::2], "not a flat view"),
    ],
)
def test_a_target_that_breaks_its_own_contract_is_an_internal_error(memory, problem):
    class Broken(MemoryTarget):
        def writable(self, name):
            return memory

    with raising("target-contract", match=problem):
        apply_tensors([offered("a", b"111")], Broken([A]), LoadObserver())


def test_a_memory_target_holds_what_was_written_until_it_is_released():
    target = MemoryTarget([A, TensorSpec("z", "F32", (0,))])
    with raising(TensorReleasedError):
        target.readable("a")
    target.writable("a")[:] = b"123"
    target.writable("z")
    assert list(target.held()) == ["a"]
    assert target.readable("a").readonly
    assert target.release() == 3
    assert target.release() == 0
    assert list(target.held()) == []


def kept(name, data, memory, *, digest=None):
    def never_read(offset, destination):
        raise AssertionError(f"{name} was copied")

    spec = TensorSpec(name, "U8", (len(data),))
    return OfferedTensor(spec, "somewhere", never_read, digest, memory=lambda: memoryview(memory))


def test_memory_that_may_be_kept_is_kept_by_a_released_tensor_and_digested_where_it_lies():
    memory = bytearray(b"111")
    target = MemoryTarget([A], adopting=True)
    applied = apply_tensors([kept("a", b"111", memory, digest=digest_of(b"111"))], target, LoadObserver())
    assert (applied.adopted_bytes, applied.bytes, applied.verified) == (3, 3, 1)
    memory[0:1] = b"2"
    assert bytes(target.readable("a")) == b"211"


@pytest.mark.parametrize("target", [MemoryTarget([A]), MemoryTarget([A], adopting=True)])
def test_bytes_are_copied_into_a_tensor_that_holds_memory_or_keeps_none(target):
    target.writable("a")[:] = b"old"
    if target.adopts("a"):
        pytest.fail("a tensor that holds memory may have been captured by its address")
    offer = OfferedTensor(A, "somewhere", offered("a", b"111").read_into, memory=lambda: memoryview(b"111"))
    applied = apply_tensors([offer], target, LoadObserver())
    assert applied.adopted_bytes == 0
    assert bytes(target.readable("a")) == b"111"


def test_memory_with_a_wrong_digest_is_never_kept():
    target = MemoryTarget([A], adopting=True)
    with raising(errors.DigestMismatchError):
        apply_tensors(
            [kept("a", b"111", bytearray(b"111"), digest=digest_of(b"222"))], target, LoadObserver()
        )
    assert list(target.held()) == []


def test_bytes_with_a_wrong_digest_are_never_moved_elsewhere():
    moved = []

    class Elsewhere(MemoryTarget):
        def written(self, name):
            moved.append(name)

    tensors = [offered("a", b"111", digest=digest_of(b"111")), offered("b", b"22", digest=digest_of(b"23"))]
    with raising(errors.DigestMismatchError):
        apply_tensors(tensors, Elsewhere([A, B]), LoadObserver())
    assert moved == ["a"]


def test_a_source_that_promises_digests_piece_by_piece_sees_every_piece_end():
    data = bytes(range(256)) * (CHUNK_BYTES // 128)
    piece = CHUNK_BYTES - 1
    seen = []

    def check_chunk(end, digest):
        seen.append(end)
        assert digest.hexdigest() == digest_of(data[:end])

    spec = TensorSpec("a", "U8", (len(data),))
    offer = OfferedTensor(
        spec, "somewhere", offered("a", data).read_into, piece_bytes=piece, check_chunk=check_chunk
    )
    target = MemoryTarget([spec])
    applied = apply_tensors([offer], target, LoadObserver())
    assert bytes(target.readable("a")) == data
    assert {end for end in seen if end % piece == 0} == set(range(piece, len(data), piece))
    assert seen[-1] == len(data)
    assert applied.verified == 1
