"""What the kernel says of a process's memory, and of what it has open."""

from __future__ import annotations

from pathlib import Path


def memory_bytes(pid: int | str, which: str) -> int:
    """One figure of its status, as ``VmRSS``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))


def peak_bytes(pid: int) -> int:
    """The most that it has held at once."""
    return memory_bytes(pid, "VmHWM")
