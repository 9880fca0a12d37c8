"""How long a group stands still for an update, hot and in place, for weights of two sizes in one run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bench.group import measured_group
from bench.measure import Distribution
from wsm import InFlightPolicy

_RANKS = 2
_HELD_TWICE = 2.2  # the served version, the staged one, and what else a process needs


@dataclass(frozen=True)
class Pauses:
    """Milliseconds in which a rank could not serve, per update.

    Parameters
    ----------
    hot, in_place : Distribution
        As the receipts say: the longest of all ranks.
    staging : Distribution
        How long the hot updates staged, all of it while serving.
    held : Distribution
        As the receipt of a release says that follows its hold at once.
    """

    hot: Distribution
    in_place: Distribution
    staging: Distribution
    held: Distribution


def measure_pauses(group_bytes: int, updates: int) -> Pauses | None:
    """Update a serving group of two ranks hot and in place, turn by turn. Blocks.

    Parameters
    ----------
    group_bytes : int
        Weights of all ranks together.
    updates : int
        Of each kind.

    Returns
    -------
    Pauses or None
        None where this machine has no room for two versions of that size.
    """
    if available_bytes() < group_bytes * _HELD_TWICE:
        return None
    hot, in_place, staging, held = [], [], [], []
    name, nbytes = f"bench-{os.getpid()}-hot", str(group_bytes // _RANKS)
    with measured_group(name, _RANKS, nbytes, module="bench.hot_rank") as (controller, _):
        for version in range(2, 2 * updates + 2, 2):
            receipt = controller.update(version, hot=True)
            hot.append(receipt.pause_s * 1e3)
            staging.append(receipt.staging_s * 1e3)
            in_place.append(controller.update(version + 1).pause_s * 1e3)
            controller.hold(in_flight=InFlightPolicy.KEEP)
            held.append(controller.release().pause_s * 1e3)
    return Pauses(*map(Distribution.of, (hot, in_place, staging, held)))


def available_bytes() -> int:
    """Bytes of memory that the kernel would hand out now."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
