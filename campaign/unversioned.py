"""Plays cases of a source that names no version: overwritten while it loads, or before a rank is replaced.

What must hold: what serves is what one write left, on every rank; a replaced rank brings back what was served
under its label, or the group stays CLEARED and says that its source was overwritten; then good updates work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from campaign.case import Case
from campaign.group import GroupUnderFault
from campaign.memory_rank import number_of
from campaign.played_config import shards_of
from campaign.rank_faults import account, finish, prepare
from campaign.result import Result, named_ranks
from wsm.strategies.trainer.tensors import bytes_of, specs_of

OPERATION = "unversioned"
SEEDS = 6

#: What happens to the files: nothing; those of one rank or of all are overwritten before a rank is killed;
#: all are while an update loads them.
WAYS = ("kept", "one", "all", "while loaded", "while staged")

_LOAD_S = 0.05


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases; the steps of other kinds are held against versions that name their weights."""
    if kind != "memory":
        return []
    return [Case(kind, ranks, OPERATION, f"{way}:{seed}") for way in WAYS for seed in range(SEEDS)]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case."""
    way = case.what.partition(":")[0]
    chance = random.Random(case.what)  # noqa: S311 - a case must be the same every time
    prepare("in_place", group, result)
    with _unnamed(group):
        label = _load(group, result)
        if way.startswith("while"):
            _overwrite_while_loaded(group, result, chance, hot=way == "while staged")
        elif label is not None:
            _kill(group, result, chance, label, way)
    finish(group, result)


@contextmanager
def _unnamed(group: GroupUnderFault) -> Iterator[None]:
    """Put what is published aside: what lies flat beside it names no version."""
    versions, aside = group.snapshots / "versions", group.snapshots / "aside"
    versions.rename(aside)
    (group.snapshots / "version.yaml").unlink(missing_ok=True)
    try:
        yield
    finally:
        aside.rename(versions)
        for path in group.snapshots.glob("model_state.tp*.pdparams"):
            path.unlink()


def _write(group: GroupUnderFault, ranks: range | list[int]) -> int:
    """Overwrite the shards of some ranks, as a trainer that knows nothing of wsm does; return their seed."""
    group.published += 1
    shards = shards_of(group.config, group.published)
    for rank in ranks:
        header, data = {}, b""
        for spec in specs_of(shards[rank]):
            content = bytes(bytes_of(shards[rank], spec))
            offsets = [len(data), len(data) + len(content)]
            header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
            data += content
        text = json.dumps(header).encode()
        path = group.snapshots / f"model_state.tp{rank}.{rank}.pdparams"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return group.published


def _load(group: GroupUnderFault, result: Result) -> str | None:
    """Load what a trainer has written; return its label."""
    seed = _write(group, range(group.ranks))
    receipt = group.command("update").receipt
    if receipt is None or receipt.version is None or receipt.verified is not False:
        result.problems.append(f"what names no version is not loaded unverified: {receipt}")
        return None
    group.contents[number_of(receipt.version)] = seed
    account(result, *group.await_service(number_of(receipt.version)))
    return receipt.version


def _kill(group: GroupUnderFault, result: Result, chance: random.Random, label: str, way: str) -> None:
    """Kill a rank, and see that the group brings back what it served, or says why it does not."""
    if way != "kept":
        _write(group, [chance.randrange(group.ranks)] if way == "one" else range(group.ranks))
    mark = group.mark()
    os.kill(chance.choice(group.supervisor.pids()), signal.SIGKILL)
    group.until(lambda: group.mark().recoveries > mark.recoveries and group.is_whole(), "its recovery")
    status = group.status()
    if way == "kept":
        result.outcome = "restored"
        result.require(status.serving and status.version == label, f"not restored: {status.sentence()}")
        account(result, *group.await_service(number_of(label)))
        return
    result.outcome = "cleared"
    told = " ".join(said for _, said in group.told[mark.told :])
    result.said = told[:300]
    result.require(status.state == "CLEARED", f"it holds weights: {status.sentence()}")
    for said in (status.because, told):
        result.require("was overwritten" in said, f"it does not say that its source was overwritten: {said}")


def _overwrite_while_loaded(
    group: GroupUnderFault, result: Result, chance: random.Random, *, hot: bool
) -> None:
    """Overwrite all files at some moment of an update; what serves afterwards is of one write."""
    before, wrote = group.published, [_write(group, range(group.ranks))]
    pause_s = chance.random() * _LOAD_S

    def overwrite() -> None:
        time.sleep(pause_s)
        wrote.append(_write(group, range(group.ranks)))

    trainer = threading.Thread(target=overwrite)
    trainer.start()
    answer = group.command("hot" if hot else "update")
    trainer.join()
    result.said = answer.said[:300]
    result.outcome = "loaded" if answer.receipt is not None else "refused"
    if answer.receipt is None or answer.receipt.version is None:
        result.error = type(answer.error).__name__
        result.named = [] if answer.error is None else named_ranks(answer.error)
        result.require(result.named, "the error names no rank")
        return
    problems: list[str] = []
    number = number_of(answer.receipt.version)
    result.require(before < min(wrote), "nothing was written")
    for seed in wrote:
        group.contents[number] = seed
        checked, problems = group.await_service(number)
        if not problems:
            account(result, checked, [])
            return
    result.problems += problems
