"""One format, with Hypothesis.

The process bounds its memory and the time of each input, by the kernel's own means.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.invariant import INPUT_S, MEMORY_BYTES, BrokenInvariantError, Format, check
from fuzz.mutation import damaged

_ROUND = 300


class SlowInputError(BaseException):
    """An input takes too long; no reader catches this."""


def search_with_bounds(form: Format, seconds: float, start: int) -> None:
    """Search as `search` does, in a process that this bounds; say how much was tried."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    inputs, values = search(form, seconds, start)
    sys.stdout.write(f"{inputs} inputs, {values} of them values\n")


def search(form: Format, seconds: float, start: int) -> tuple[int, int]:
    """Draw damage with Hypothesis until `seconds` have passed; return how many inputs, how many values.

    Raises
    ------
    BrokenInvariantError
        For the smallest input that Hypothesis finds.
    """
    counts = [0, 0]
    until = time.monotonic() + seconds
    while not counts[0] or time.monotonic() < until:
        _round(form, counts, start + counts[0], until)
    return counts[0], counts[1]


def _round(form: Format, counts: list[int], start: int, until: float) -> None:
    @seed(start)
    @settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(form))
    def one(data: bytes) -> None:
        if counts[0] and time.monotonic() > until:
            return
        counts[0] += 1
        with _timely(form, data):
            counts[1] += check(form, data)

    one()


@contextmanager
def _timely(form: Format, data: bytes) -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise SlowInputError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(INPUT_S)
    try:
        yield
    except SlowInputError as error:
        raise BrokenInvariantError(form.name, data, f"it takes more than {INPUT_S} s") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
