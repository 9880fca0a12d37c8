"""Letting Python's cycle collector rest while many objects are made that it could not free anyway.

What describes ten thousand tensors is a hundred thousand objects without a cycle among them. The collector
would walk them, and all that the process held before, again and again: with paddle loaded 40 to 60 ms each
time. Knows nothing about tensors.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of the process, if it runs; for work of bounded time that waits for nobody."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
