"""Copies of bytes in memory: right in every odd case, and no other thread stands still for one."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from stamped import apply_tensors

from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.digest import digest_of
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ITEM_BYTES
from wsm.strategies.transposing import (
    BLOCK_BYTES,
    MAX_BLOCK_BYTES,
    TransposedMemory,
    block_bytes,
    in_source_order,
)

LARGE = 1 << 20


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 1 << 16, LARGE + 1])
def test_every_byte_is_copied_from_any_memory_to_any_other(nbytes):
    content = (bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    copied = bytearray(nbytes + 2)
    copy_bytes(memoryview(content), memoryview(copied)[1 : nbytes + 1])
    assert copied == b"\0" + content + b"\0"


def test_overlapping_bytes_are_copied_as_they_were():
    content = bytearray(range(256)) * (LARGE // 256)
    before = bytes(content)
    copy_bytes(memoryview(content)[: LARGE - 7], memoryview(content)[7:])
    assert content[7:] == before[: LARGE - 7]


@pytest.mark.parametrize("nbytes", [64, LARGE])
@pytest.mark.parametrize(
    ("source", "destination", "error"),
    [
        (lambda n: memoryview(bytes(n)), lambda n: memoryview(bytes(n)), TypeError),
        (lambda n: memoryview(bytes(1)), lambda n: memoryview(bytearray(n)), ValueError),
        (lambda n: memoryview(bytes(n + 1)), lambda n: memoryview(bytearray(n)), ValueError),
    ],
    ids=["read-only", "one byte", "too many"],
)
def test_what_cannot_be_copied_is_refused(nbytes, source, destination, error):
    with pytest.raises(error):
        copy_bytes(source(nbytes), destination(nbytes))


@pytest.mark.slow
def test_other_threads_go_on_while_much_is_copied():
    """A slice lets them on in none of a hundred copies, however the machine's cores are shared."""
    source, destination = memoryview(bytes(64 << 20)), memoryview(bytearray(64 << 20))
    turns, done, begun = 0, threading.Event(), threading.Event()

    def count():
        nonlocal turns
        while not done.is_set():
            turns += 1
            begun.set()

    other = threading.Thread(target=count)
    other.start()
    begun.wait(60)
    seen = []
    try:
        for _ in range(100):
            before = turns
            copy_bytes(source, destination)
            seen.append(turns - before)
    finally:
        done.set()
        other.join()
    assert sum(each > 100 for each in seen) >= 8, seen


# -- bytes that are turned round on their way ------------------------------------------------------------


SHAPES = [
    (1, 1),
    (1, 7),
    (7, 1),
    (3, 5),
    (200, 300),
    (2, 3, 129, 70),
    (700, 1025),
    (3, 700_000),
    (2, 600, 513),
]


def made(shape, dtype):
    spec = TensorSpec("w", dtype, shape)
    data = np.random.default_rng(1).bytes(spec.nbytes)
    array = np.frombuffer(data, f"u{ITEM_BYTES[dtype]}").reshape(shape)
    return spec, data, np.swapaxes(array, -1, -2).tobytes()


@pytest.mark.parametrize("dtype", ["F8_E4M3", "BF16", "F32", "F64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(shape, dtype):
    spec, data, turned = made(shape, dtype)
    memory = memoryview(bytearray(spec.nbytes))
    TransposedMemory(memory, spec).put(0, memoryview(data))
    assert memory == turned
    assert in_source_order(memory, spec) == data


@pytest.mark.parametrize("step", [1, 3, 4, 5, 11, 64, 1000])
def test_rows_and_matrices_may_be_cut_anywhere_between_two_elements(step):
    spec, data, turned = made((3, 13, 11), "BF16")
    memory = memoryview(bytearray(spec.nbytes))
    there = TransposedMemory(memory, spec)
    for begin in range(0, len(data), 2 * step):
        there.put(begin, memoryview(data)[begin : begin + 2 * step])
    assert memory == turned


@pytest.mark.parametrize("shape", [(), (5,), (0, 4), (4, 0)])
def test_where_there_is_nothing_to_exchange_bytes_stay_as_they_are(shape):
    spec = TensorSpec("w", "F32", shape)
    data = bytes(range(spec.nbytes))
    target = MemoryTarget([spec], transposed=["w"])
    apply_tensors([OfferedTensor.of_bytes(spec, "here", memoryview(data))], target, LoadObserver())
    assert target.writable("w") == target.readable("w") == data


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5, 4_000_000), "F64"), ((4096, 4096), "BF16"), ((100_000, 3), "F32"), ((3, 5), "U8")],
)
def test_a_block_is_bounded_and_of_whole_elements_and_rows(shape, dtype):
    spec = TensorSpec("w", dtype, shape)
    size, row = block_bytes(spec), shape[-1] * ITEM_BYTES[dtype]
    assert 0 < size <= MAX_BLOCK_BYTES
    assert size % ITEM_BYTES[dtype] == 0
    assert size % row == 0 or row > MAX_BLOCK_BYTES


@pytest.mark.parametrize("piece_bytes", [0, 1000, 1 << 16, 3 << 20])
@pytest.mark.parametrize("shape", [(700, 1025), (3, 700_000)])
def test_a_tensor_in_pieces_is_digested_as_it_came_and_no_read_crosses_a_piece(shape, piece_bytes):
    spec, data, turned = made(shape, "F32")
    reads, target = [], MemoryTarget([spec], transposed=["w"])

    def read_into(offset, destination):
        reads.append((offset, offset + len(destination)))
        destination[:] = data[offset : offset + len(destination)]

    tensor = OfferedTensor(spec, "there", read_into, digest_of(data), piece_bytes=piece_bytes)
    applied = apply_tensors([tensor], target, LoadObserver())
    assert target.writable("w") == turned
    assert applied.verified == 1
    assert BLOCK_BYTES // 2 < applied.peak_extra_bytes <= MAX_BLOCK_BYTES
    assert [begin for begin, _ in reads[1:]] == [end for _, end in reads[:-1]]
    if piece_bytes:
        assert all(begin // piece_bytes == (end - 1) // piece_bytes for begin, end in reads)


def test_a_wrong_byte_is_found_in_what_came():
    spec, data, _ = made((20, 30), "F32")
    tensor = OfferedTensor.of_bytes(spec, "there", memoryview(data), digest_of(b"something else"))
    with pytest.raises(errors.DigestMismatchError) as caught:
        apply_tensors([tensor], MemoryTarget([spec], transposed=["w"]), LoadObserver())
    assert caught.value.touched


def test_memory_of_a_source_is_never_kept_for_a_tensor_that_is_turned_round():
    spec, data, turned = made((20, 30), "F32")
    tensor = OfferedTensor.of_bytes(spec, "there", memoryview(data))
    tensor.memory = lambda: memoryview(bytearray(data))
    target = MemoryTarget([spec], adopting=True, transposed=["w"])
    assert apply_tensors([tensor], target, LoadObserver()).adopted_bytes == 0
    assert target.writable("w") == turned


def test_large_tensors_are_turned_round_where_several_threads_read_too():
    spec, data, turned = made((700, 1025), "F32")
    specs = [TensorSpec(name, spec.dtype, spec.shape) for name in ("a", "b", "c")]
    target = MemoryTarget(specs, transposed=["a", "b"])
    tensors = [OfferedTensor.of_bytes(each, "there", memoryview(data), digest_of(data)) for each in specs]
    assert apply_tensors(tensors, target, LoadObserver(), threads=2).verified == 3
    assert [target.writable(name) for name in "abc"] == [turned, turned, data]
