"""Memory of tensors: zeros, in large pages where large, gone with its last view; one staged beside it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from wsm import TensorReleasedError
from wsm.strategies import MemoryTarget, TensorSpec
from wsm.strategies.applier.memory_target import host_memory

LARGE = 8 << 20


def mapping_of(memory):
    """Return what the kernel says of the mapping that a view lies in; empty if there is none."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    lines: list[str] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(each, 16) for each in first.split("-"))
            lines = [] if not begin <= address < end else [line]
        elif lines:
            lines.append(line)
            if line.startswith("VmFlags"):
                return lines
    return []


@pytest.mark.parametrize("nbytes", [0, 1, 4096, (4 << 20) - 1, 4 << 20, LARGE + 1])
def test_memory_is_flat_zero_and_writable(nbytes):
    memory = host_memory(nbytes)
    assert (memory.nbytes, memory.format, memory.ndim, memory.readonly) == (nbytes, "B", 1, False)
    assert not any(memory[:: max(nbytes // 100, 1)])
    memory[-1:] = b"x" if nbytes else b""


def test_large_memory_asks_for_large_pages():
    memory = host_memory(LARGE)
    flags = next(line for line in mapping_of(memory) if line.startswith("VmFlags")).split()
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_memory_is_held_from_the_first_write_on():
    def held_pages():
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = held_pages()
    memory = host_memory(16 * LARGE)
    untouched = held_pages()
    memory[:: 1 << 12] = bytes(len(memory) >> 12)
    assert untouched - before < (8 * LARGE) >> 12 < held_pages() - before


def test_two_tensors_share_no_memory():
    first, second = host_memory(LARGE), host_memory(LARGE)
    first[:3] = b"abc"
    assert bytes(second[:3]) == b"\0\0\0"


def filled(memory, data):
    for name in ("a", "b"):
        memory.writable(name)[:] = data
    memory.writable("empty")
    return memory


SPECS = [TensorSpec("a", "U8", (2,)), TensorSpec("b", "U8", (2,)), TensorSpec("empty", "U8", (0,))]


def test_a_staged_version_takes_the_place_of_the_served_one_and_what_was_captured_stays_where_it_is():
    target = filled(MemoryTarget(SPECS), b"11")
    captured, moved = target.writable("a"), target.writable("b")
    staged = filled(target.stage(), b"22")
    staged.make_ready(frozenset({"a"}))
    assert (staged.unflipped(), target.readable("a"), target.readable("b")) == ("a", b"11", b"11")
    staged.flip()
    assert (staged.unflipped(), target.readable("a"), target.readable("b")) == (None, b"22", b"22")
    assert (captured, moved) == (b"22", b"11"), "a graph reads the first"
    assert staged.give_back() == 4
    for name in ("a", "b"):
        with pytest.raises(TensorReleasedError):
            staged.readable(name)


def test_a_staged_version_is_ready_where_all_is_staged_and_all_is_served():
    staged = filled(MemoryTarget(SPECS), b"11").stage()
    staged.writable("a")
    with pytest.raises(TensorReleasedError):
        staged.make_ready(frozenset())
    beside_nothing = filled(MemoryTarget(SPECS).stage(), b"22")
    with pytest.raises(TensorReleasedError):
        beside_nothing.make_ready(frozenset())
    assert not staged.is_ready()
    assert not beside_nothing.is_ready()
