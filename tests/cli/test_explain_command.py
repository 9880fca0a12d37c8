"""``wsm explain`` as it is typed: sentences or JSON, for groups, for files, for names that there are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Run
from commanded_group import LivingGroup

pytestmark = pytest.mark.processes


def test_it_tells_sentences_json_and_as_many_transitions_as_asked(
    group: LivingGroup, wsm: Run, tmp_path: Path
) -> None:
    group.serve(1)
    code, out, _ = wsm("explain", group.name)
    assert code == 0
    assert f"{group.name} serves version 1." in out
    assert "weights: PREPARED --commit--> NORMAL" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("  "))
    assert "Last transitions" not in wsm("explain", group.name, "--last", "0").out
    told = json.loads(wsm("explain", group.name, "--json").out)
    assert told["serving"] is True
    assert [rank["life"] for rank in told["ranks"]] == ["alive"] * len(told["ranks"])
    saved = shutil.copy(group.segment.path, tmp_path / f"wsm.{group.name}")
    assert f"{group.name} serves version 1." in wsm("explain", str(saved)).out


def test_a_stopped_rank_is_called_stopped_and_a_missing_group_is_wrong_usage(
    group: LivingGroup, wsm: Run
) -> None:
    group.serve(1)
    group.stop(1)
    group.until(lambda now: now.ranks[1].life == "stopped")
    assert "whose process is stopped" in wsm("explain", group.name, "--last", "0").out
    assert "stopped" in wsm("status", group.name).out
    group.resume(1)
    code, _, err = wsm("explain", "nothing-of-that-name")
    assert code == 2
    assert "no group" in err
