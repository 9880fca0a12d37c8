"""One rank whose steps and actions meet on a real Gloo group: ``gloo_rank.py SETTINGS RANK``.

It steps as long as the file ``work`` is in its directory, and says what became of it when it ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import paddle
from lone_rank import SPECS, load
from paddle import distributed

import wsm
from wsm.actions.backends.paddle_groups import PaddleGlooGroups
from wsm.actions.backends.rendezvous import FileRendezvous
from wsm.actions.surfaces import GroupKind
from wsm.config import config_from_mapping
from wsm.testing import InMemoryRunner


class HeldGroups(PaddleGlooGroups):
    """Do not enter a barrier as long as the test says so."""

    hold: Path

    def barrier(self, kind: GroupKind) -> None:
        if self.hold.exists():
            self.hold.with_suffix(".reached").touch()
            while self.hold.exists():
                time.sleep(0.001)
        super().barrier(kind)


def say(**facts: object) -> None:
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


def main() -> None:
    settings, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    directory = Path(settings["directory"])
    config = config_from_mapping(settings["config"])
    runner = InMemoryRunner(SPECS)
    groups = HeldGroups(
        rank, {GroupKind.TP: range(config.ranks)}, FileRendezvous(directory / "rendezvous"), timeout_s=600.0
    )
    groups.hold = directory / f"hold{rank}"
    runner.groups = groups
    worker = wsm.Worker(config, runner, rank=rank, load=load, directory=directory)
    say(event="ready")
    steps = 0
    while not (directory / "stop").exists():
        turn = worker.poll()
        if turn is wsm.HOLD:
            continue
        if turn is wsm.SERVE and not (directory / "work").exists():
            worker.wait(0.001)
            continue
        try:
            with worker.step():
                value = paddle.to_tensor([1.0])
                distributed.all_reduce(value, group=groups.group(GroupKind.TP))
        except RuntimeError as error:
            say(event="step raised", error=type(error).__name__)
            continue
        steps += 1
        if steps == 3:
            say(event="stepping")
    worker.close()


if __name__ == "__main__":
    main()
