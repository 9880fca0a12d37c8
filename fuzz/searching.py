"""One format, with Hypothesis.

The process bounds its memory and the time of each input, by the kernel's own means.
"""

from __future__ import annotations

import math
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


def search(form: Format, seconds: float, start: int) -> None:
    """Draw damage with Hypothesis until `seconds` have passed, and print how much; the process is for this.

    Raises
    ------
    BrokenInvariantError
        For the smallest input that Hypothesis finds.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    counts = [0, 0]
    until = time.monotonic() + seconds
    while not counts[0] or time.monotonic() < until:
        _round(form, counts, start + counts[0], until)
    sys.stdout.write(f"{counts[0]} inputs, {counts[1]} of them values\n")


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
        nonlocal until
        if counts[0] and time.monotonic() > until:
            return  # the round is drawn to its end, but tried no further
        counts[0] += 1
        try:
            with _timely(form, data):
                counts[1] += check(form, data)
        except BrokenInvariantError:
            until = math.inf  # what was found is made smaller, however long that takes
            raise

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
