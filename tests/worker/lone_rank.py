"""A group of one rank in the test's own process: real worker, segment and controller, one poll at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wsm
from wsm.actions.base import ActionContext
from wsm.actions.measuring import resident_digest
from wsm.controller import Pending
from wsm.journal.replay import replay
from wsm.labels import version_id
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.testing import InMemoryRunner

SPECS = (TensorSpec("weight", "F32", (8, 8)), TensorSpec("bias", "F32", (8,)))


def load(context: ActionContext, target: WeightTarget) -> dict[str, Any]:
    """Every byte of version 7 is 7; of another label, what stands for it."""
    label = context.version
    byte = (int(label) if label.isdecimal() else version_id(label)) % 256
    for name, spec in target.specs().items():
        target.writable(name)[:] = bytes([byte]) * spec.nbytes
    digest = resident_digest(target, context.progress)
    facts = {"version": context.version, "manifest_digest": f"m{context.version}", "manifest_scope": "group"}
    return {**facts, "digest": digest, "bytes": 288, "tensors": 2}


class LoneRank:
    """Worker and controller of one group; `poll` runs the command that `begin` left open."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.runner = options.pop("runner", None) or InMemoryRunner(SPECS)
        clock = options.pop("clock", None)
        load_function = options.pop("load", load)
        plan_options = options.pop("plan_options", None)
        self.config = wsm.WsmConfig(**{"name": "lone", "ranks": 1, "on_failure": "clear", **options})
        self.worker = wsm.Worker(
            self.config,
            self.runner,
            rank=0,
            plan_options=plan_options,
            load=load_function,
            clock=clock,
            directory=directory,
        )
        self.segment = self.worker._attachment.segment
        self.controller = wsm.Controller("lone", directory=directory)

    def run(self, pending: Pending) -> None:
        """Poll until the command is over, and stepping is allowed again or nothing is held."""
        pending.written(1)
        while not pending.over:
            self.worker.poll()

    def update(self, version: int | str | None, **options: Any) -> wsm.Receipt:
        pending = self.controller.begin_update(version, **options)
        self.run(pending)
        self.worker.poll()
        return pending.result()

    def clear(self, **options: Any) -> wsm.Receipt:
        pending = self.controller.begin_clear(**options)
        self.run(pending)
        return pending.result()

    def close(self) -> None:
        self.controller.close()
        self.worker.close()
        assert not (found := replay(self.worker.journal).findings), ", ".join(map(str, found))
