"""Copies of bytes in memory: right in every odd case, and no other thread stands still for one."""

from __future__ import annotations

import threading

import pytest

from wsm.strategies.byte_copy import copy_bytes

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
