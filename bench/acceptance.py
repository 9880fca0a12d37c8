"""From the controller's call to the moment at which the last rank has accepted the command.

The end is read from the ranks' journals, whose clock is the controller's: all processes of a host share
the monotonic clock. What is measured is the call, so the controller's own checks are part of it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench.group import measured_group
from bench.measure import Distribution
from wsm import Receipt
from wsm.journal.entry import WORD_WRITTEN, read_ndjson


def measure_acceptance(commands: int, *, ranks: int, mode: str) -> Distribution:
    """Return microseconds from each of `commands` calls of ``clear()`` to the last rank's ACCEPTED."""
    called: dict[int, int] = {}
    with measured_group(f"bench-{os.getpid()}-{mode}{ranks}", ranks, mode) as (controller, directory):
        for version in range(2, commands + 2):
            sequence, began = _called(controller.clear)
            called[sequence] = began
            controller.update(version)
            # Ranks that have just begun to serve are not idle yet: let them come to rest.
            time.sleep(0.002)
        accepted = _accepted(directory, ranks)
    return Distribution.of([(accepted[sequence] - began) / 1e3 for sequence, began in called.items()])


def _called(command: Callable[[], Receipt]) -> tuple[int, int]:
    began = time.monotonic_ns()
    receipt = command()
    return receipt.sequence, began


def _accepted(directory: Path, ranks: int) -> dict[int, int]:
    """Return per sequence when the last of all ranks wrote ACCEPTED."""
    times: dict[int, list[int]] = defaultdict(list)
    for rank in range(ranks):
        with (directory / f"rank{rank}.ndjson").open(encoding="utf-8") as lines:
            for entry in read_ndjson(lines):
                if entry.kind == WORD_WRITTEN and entry.facts.get("code") == "ACCEPTED":
                    times[entry.sequence].append(entry.at_ns)
    return {sequence: max(found) for sequence, found in times.items() if len(found) == ranks}
