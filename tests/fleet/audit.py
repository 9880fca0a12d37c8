"""What was answered to those who asked a fleet for text, held against what its targets allowed then. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from wsm.states.fleet import FleetTarget

#: Seconds in which a replica has read a new target, on cores that are busy.
READ_S = 2.0
#: Seconds in which a watcher has left out one that does not answer: three looks, and the look that hangs.
LEFT_OUT_S = 10.0


class Try(NamedTuple):
    """One request for text of one replica. `status` 0: no answer."""

    began: float
    ended: float
    url: str
    status: int
    tokens: tuple[int, ...]
    why: str


class Disturbance(NamedTuple):
    """When a replica was killed, stopped, or had its ranks started anew."""

    url: str
    began: float
    ended: float


def tries_of(log: Path) -> list[Try]:
    found = []
    for part in log.parent.glob(f"{log.name}.*"):
        for line in part.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                said = json.loads(line)
                tokens, why = tuple(said["tokens"]), said.get("why", "")
                found.append(Try(said["began"], said["ended"], said["url"], said["status"], tokens, why))
    return found


def broken_promises(tries: Iterable[Try], disturbances: Sequence[Disturbance], store: Path) -> list[str]:
    """Return each try that failed for no reason, and each token of weights that were not allowed."""
    targets = [
        (path.stat().st_mtime, msgspec.json.decode(path.read_bytes(), type=FleetTarget))
        for path in sorted((store / "targets").glob("*.json"))
    ]

    def is_disturbed(one: Try) -> bool:
        return any(
            each.url == one.url and each.began <= one.ended and one.began <= each.ended + LEFT_OUT_S
            for each in disturbances
        )

    def allowed(one: Try) -> set[int]:
        then = [target for set_at, target in targets if set_at <= one.began - READ_S][-1:]
        since = [target for set_at, target in targets if one.began - READ_S < set_at <= one.ended]
        return {int(each.label) for target in (*then, *since) for each in target.allowed}

    broken = []
    for one in tries:
        if one.status == 200 and not set(one.tokens) <= allowed(one):
            broken.append(f"tokens {one.tokens} where {allowed(one)} was allowed: {one}")
        if one.status not in (200, 503) and not is_disturbed(one):
            broken.append(f"failed at a replica that nothing befell: {one}")
    return broken
