"""Lets a rank write down what it verified, tensor by tensor, where its journal is kept.

The bytes are read anyway, after every load; what is added is one small file per load. Without a directory for
journals, or with a digest of the engine's own, nothing is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from wsm.actions.measuring import resident_digest, resident_tensors
from wsm.actions.options import PlanOptions
from wsm.strategies.applier.tensor_ledger import keep_ledger
from wsm.strategies.tensor import WeightTarget


def keeping_tensors(options: PlanOptions, directory: str | None, rank: int) -> PlanOptions:
    """Return options whose verification leaves the digest of every tensor in `directory`."""
    if directory is None or options.resident_digest is not resident_digest:
        return options

    def digest(weights: WeightTarget, progress: Callable[[], None]) -> str:
        return keep_ledger(directory, rank, resident_tensors(weights, progress))

    return dataclasses.replace(options, resident_digest=digest)
