"""What a turn of a serving loop costs: ``poll()`` and ``step()``, beside an empty loop and a broadcast.

Rank 0 of a real group of two is timed while its peer stands still between two steps, so that every turn is
the one that a serving loop nearly always takes.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from bench.gloo_signal import measure_iterations
from bench.group import measured_group
from bench.measure import Distribution
from bench.rank_process import RESULT_FILE

_GLOO_ITERATIONS = 3000
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class ServingCosts:
    """Nanoseconds per iteration.

    Parameters
    ----------
    empty : Distribution
        A loop that does nothing.
    following : Distribution
        ``poll()`` and ``step()`` of a rank that looks whether its peer is ahead.
    alike : Distribution
        The same where all schedulers decide alike (``follow: false``).
    gloo : float
        Median of a broadcast of the signal by Gloo.
    """

    empty: Distribution
    following: Distribution
    alike: Distribution
    gloo: float


def measure_serving() -> ServingCosts:
    """Measure all of them, one after the other. Blocks."""
    empty, following = _turns(follow=True)
    _, alike = _turns(follow=False)
    return ServingCosts(empty, following, alike, measure_iterations(_GLOO_ITERATIONS))


def _turns(*, follow: bool) -> tuple[Distribution, Distribution]:
    name = f"bench-{os.getpid()}-{'follow' if follow else 'alike'}"
    with measured_group(name, 2, "timed", follow=follow) as (_, directory):
        result, deadline = directory / RESULT_FILE, time.monotonic() + _PATIENCE_S
        while not result.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 did not time its turns within {_PATIENCE_S:g} s")
            time.sleep(0.05)
        samples = json.loads(result.read_text(encoding="utf-8"))
    return Distribution.of(samples["empty"]), Distribution.of(samples["turn"])
