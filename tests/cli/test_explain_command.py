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
