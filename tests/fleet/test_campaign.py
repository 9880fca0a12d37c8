"""While processes of a fleet are killed, no text is of weights that its target did not allow."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.fleet.audit import Disturbance, Try, broken_promises
from tests.fleet.campaign import play
from wsm.states.fleet import FleetTarget, NamedContent


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)  # eight servers, sixteen ranks; 200 runs: ``python -m tests.fleet.campaign 200 1``
def test_eight_replicas_break_no_promise_whatever_befalls_them(tmp_path: Path) -> None:
    broken, counts = play(tmp_path, 10, seed=1)
    assert broken == []
    assert counts["tries answered 200"] > 100


def test_the_audit_tells_what_was_not_allowed_and_what_failed_where_nothing_befell(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    contents = [NamedContent(str(label), f"digest {label}") for label in (1, 2)]
    for generation, allowed in (1, contents[:1]), (2, contents), (3, contents[1:]):
        target = FleetTarget(generation=generation, content=allowed[-1], allowed=tuple(allowed))
        (targets / f"{generation:012}.json").write_bytes(msgspec.json.encode(target))
    now = (targets / f"{3:012}.json").stat().st_mtime

    def told(began: float, *tokens: int, status: int = 200) -> list[str]:
        one = Try(now + began, now + began + 0.1, "http://a", status, tokens, "")
        return broken_promises([one], [Disturbance("http://a", now + 50.0, now + 51.0)], tmp_path)

    assert told(1.0, 1, 2) == [], "a replica may not have read the newest target yet"
    assert told(20.0, 2, 2) == []
    assert len(told(20.0, 2, 1)) == len(told(20.0, -1)) == len(told(20.0, status=502)) == 1
    assert told(20.0, status=503) == told(52.0, status=0) == []
