"""Memory for tensors: zeros of the right size, in large pages where it is large, gone with its last view."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

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
