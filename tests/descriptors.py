"""How many descriptors this process has, for tests that some are closed again."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def open_descriptors() -> int:
    """Count them, with the one that lists them."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted


def open_before() -> int:
    """Count them once what earlier tests left in cycles is gone: it would go at any moment."""
    gc.collect()
    return open_descriptors()


def open_below(directory: Path) -> list[str]:
    """Return what lies in a directory and is open here."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - as above
    names = [os.readlink(link) for link in links if os.path.islink(link)]  # noqa: PTH114, PTH115 - names again
    return [name for name in names if name.startswith(f"{directory}/")]
