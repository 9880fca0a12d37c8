"""A whole clear and update with nothing to do in any action, as a caller sees it."""

from __future__ import annotations

import os
import time

from bench.group import measured_group
from bench.measure import Distribution


def measure_cycles(cycles: int, *, ranks: int = 2) -> Distribution:
    """Return milliseconds of clear and update together, receipts included, over `cycles` cycles. Blocks."""
    samples = []
    with measured_group(f"bench-{os.getpid()}-cycle{ranks}", ranks, "idle") as (controller, _):
        for version in range(2, cycles + 2):
            began = time.perf_counter()
            controller.clear()
            controller.update(version)
            samples.append((time.perf_counter() - began) * 1e3)
    return Distribution.of(samples)
