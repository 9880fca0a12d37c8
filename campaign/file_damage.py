"""Plays cases of damaged snapshots and of a trainer that dies while it publishes.

What must hold: wrong bytes never serve; the caller is told what is wrong with the version, or gets the
version whole; the group keeps a state that the tables name, and a good publication afterwards is served.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from campaign.case import Case
from campaign.environment import victims_environment
from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault
from campaign.rank_faults import finish, judge_group, prepare
from campaign.result import Result, named_ranks

#: Which file of a publication is damaged; each pattern has at least one match.
TARGETS = {
    "part": "versions/{version}/model_state.tp*.pdparams",
    "shard_manifest": "versions/{version}/model_state.tp*.manifest.json",
    "manifest": "versions/{version}/model_state.manifest.json",
    "inner_yaml": "versions/{version}/version.yaml",
    "yaml": "version.yaml",
}
SEEDS = 12

#: System calls of a publication of two ranks; later ones are simply never reached.
TRAINER_CALLS = 48
_TRAINER_S = 60.0


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases."""
    damage = [
        f"{how}:{target}:{seed}"
        for target in TARGETS
        for how in ("flip", "cut", "remove")
        for seed in range(SEEDS)
    ]
    deaths = [
        str(Fault("trainer", point, Act.KILL, nth))
        for point, most in (("call", TRAINER_CALLS), ("torn", 8))
        for nth in range(1, most + 1)
    ]
    return [Case(kind, ranks, "files", what) for what in (*damage, *deaths)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    (_play_trainer if case.what.startswith("trainer/") else _play_damage)(case, group, result)


def _play_damage(case: Case, group: GroupUnderFault, result: Result) -> None:
    how, target, seed = case.what.split(":")
    before = prepare("in_place", group, result)
    version = group.publish()
    chance = random.Random(f"{how} {target} {seed}")  # noqa: S311 - a case must be the same every time
    found = sorted(group.snapshots.glob(TARGETS[target].format(version=version)))
    path = chance.choice(found)
    whole = path.read_bytes()
    _DAMAGE[how](path, chance)
    result.require(not path.exists() or path.read_bytes() != whole, "the damage did no damage")
    answer = group.command("update", None if target == "yaml" else version)
    result.said = answer.said[:300]
    if answer.error is not None:
        result.error, result.named = type(answer.error).__name__, named_ranks(answer.error)
        result.require(result.named, "the error names no rank")
    judge_group("in_place", group, result, before=before, version=version)
    if target == "yaml" and not path.exists():
        path.write_bytes(whole)  # a trainer that publishes next writes it anyhow
    finish(group, result)


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 3))):
        bit = chance.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.choice((0, path.stat().st_size - 1, chance.randrange(path.stat().st_size))))


def _remove(path: Path, _chance: random.Random) -> None:
    path.unlink()


_DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {"flip": _flip, "cut": _cut, "remove": _remove}


def _play_trainer(case: Case, group: GroupUnderFault, result: Result) -> None:
    fault = case.fault
    before = prepare("in_place", group, result)
    group.published += 1
    version = group.published
    group.arm(fault)
    arguments = [str(group.snapshots), str(version), str(group.ranks)]
    trainer = subprocess.run(  # noqa: S603 - our own module under our own interpreter
        [sys.executable, "-m", "campaign.trainer_process", *arguments],
        check=False,
        timeout=_TRAINER_S,
        env=victims_environment(group.directory),
    )
    fired = group.fired(fault)
    group.orders.withdraw("trainer")
    result.require(trainer.returncode in (0, -9), f"the trainer ended with {trainer.returncode}")
    result.require((fired is None) == (trainer.returncode == 0), "the trainer died without an order")
    answer = group.command("update")  # whatever is announced now
    result.said = answer.said[:300]
    result.error = type(answer.error).__name__ if answer.error is not None else ""
    result.require(answer.receipt is not None, f"what is announced cannot be loaded: {answer.said[:300]}")
    judge_group("in_place", group, result, before=before, version=version)
    finish(group, result)
    with contextlib.suppress(FileNotFoundError):
        staged = [path.name for path in (group.snapshots / "versions").iterdir() if "staging" in path.name]
        result.require(not staged, f"a later publication left {staged}")
