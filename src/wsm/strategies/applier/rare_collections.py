"""Letting Python's cycle collector run rarely while many objects are made that it could not free anyway.

What describes ten thousand tensors is a hundred thousand objects without a cycle among them. The collector
would walk them again and again, and with them all that the process held before: with paddle loaded 40 to
60 ms each time. It is made rare, not stopped, and only while a version is opened, not while its bytes come:
the collector is the whole process', which may serve meanwhile, and some sources are waited for when they are
opened. What the cycles that others leave can hold until then is bounded by :data:`RARELY`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: So many more containers must exist than at the last collection before the next one begins. Ten thousand
#: tensors make about as many; ten times the bound gains nothing more.
RARELY = 100_000

_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector of the process run rarely inside; any number of threads may be inside at once.

    Thresholds that other code sets meanwhile stay as it has set them.
    """
    global _inside, _before  # noqa: PLW0603 - the collector is one per process, and so is who changed it
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < RARELY:
                gc.set_threshold(RARELY, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and gc.get_threshold() == (RARELY, *_before[1:]):
                gc.set_threshold(*_before)
