"""A local group of one rank, for tests that poll it by hand while a controller waits in a thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wsm
from wsm.actions.base import ActionContext
from wsm.actions.measuring import resident_digest
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import completed
from wsm.controller import Pending
from wsm.journal.replay import replay
from wsm.labels import version_id
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.testing import InMemoryRunner, LocalGroup

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
    """Worker and controller of one group; `run` polls while a command is open that `controller` has begun."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.runner = runner = options.pop("runner", None) or InMemoryRunner(SPECS)
        plan_options = options.pop("plan_options", None) or PlanOptions.from_runner(completed(runner))
        self.group = LocalGroup(
            lambda _: runner,
            directory,
            ranks=1,
            load=options.pop("load", load),
            plan_options=lambda _: plan_options,
            configuration={"name": "lone", "on_failure": "clear", **options},
        )
        self.worker, self.config, self.segment = self.group.workers[0], self.group.config, self.group.segment
        self.controller = wsm.Controller("lone", directory=directory)

    def run(self, pending: Pending) -> None:
        """Poll until the command is over, and stepping is allowed again or nothing is held."""
        pending.written(1)
        while not pending.over:
            self.worker.poll()

    def update(self, version: int | str | None, **options: Any) -> wsm.Receipt:
        return self.group.update(version, **options)

    def clear(self, **options: Any) -> wsm.Receipt:
        return self.group.clear(**options)

    def close(self) -> None:
        self.controller.close()
        self.group.close()
        assert not (found := replay(self.worker.journal).findings), ", ".join(map(str, found))
