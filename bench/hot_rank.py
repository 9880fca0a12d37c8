"""One rank of a group whose pause is measured: real paddle parameters, few and large, in a loop that steps.

Every version fills them with a byte of its own, so that publishing gigabytes is no part of the measurement;
loading, digests and the switch are the worker's own. Steps are waits of fixed length, in lock-step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from bench.rank_process import LockStep, run_serving
from wsm import Worker, WsmConfig, log
from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.actions.base import ActionContext
from wsm.actions.measuring import resident_digest
from wsm.strategies.tensor import WeightTarget
from wsm.testing import InMemoryRunner

#: Parameters of a rank, whatever their size.
PARAMETERS = 8
_ITEM_BYTES = 4
_LOOK_S = 0.00005


class FewLargeParameters:
    """A model as far as weights are concerned.

    Parameters
    ----------
    nbytes : int
        Of all parameters of this rank together; a multiple of 32.
    """

    def __init__(self, nbytes: int) -> None:
        items = nbytes // PARAMETERS // _ITEM_BYTES
        self._tensors = {
            f"block.{index}": paddle.empty([items], dtype="float32") for index in range(PARAMETERS)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return every parameter by name."""
        return self._tensors


class HotRunner(InMemoryRunner):
    """An engine in memory whose weights are paddle's."""

    def __init__(self, weights: PaddleWeights) -> None:
        super().__init__(())
        self.weights = weights  # type: ignore[assignment] # the same surface, on other memory


def fill(context: ActionContext, target: WeightTarget) -> Mapping[str, Any]:
    """Fill every parameter with the version's lowest byte."""
    version = int(context.version or 0)
    for name in target.specs():
        np.frombuffer(target.writable(name), np.uint8).fill(version & 0xFF)
        context.progress()
    return {
        "version": version,
        "manifest_digest": f"{version:032x}",
        "manifest_scope": "group",
        "digest": resident_digest(target, context.progress),
        "bytes": sum(spec.nbytes for spec in target.specs().values()),
        "tensors": PARAMETERS,
    }


def main() -> None:
    """Run one rank: NAME RANK RANKS BYTES DIRECTORY FOLLOW."""
    name, rank_text, ranks_text, nbytes, directory, _ = sys.argv[1:7]
    rank, ranks = int(rank_text), int(ranks_text)
    log.configure(level="warning")  # paddle's own set-up would print every event in the middle of a pause
    weights = PaddleWeights(FewLargeParameters(int(nbytes)))
    weights.release()
    config = WsmConfig(name=name, ranks=ranks, journal_directory=directory)
    worker = Worker(config, HotRunner(weights), rank=rank, load=fill)
    run_serving(worker, LockStep(Path(directory) / "lock_step", rank, ranks, look_s=_LOOK_S))


if __name__ == "__main__":
    main()
