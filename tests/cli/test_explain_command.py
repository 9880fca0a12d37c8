"""``wsm explain`` as it is typed: sentences or JSON, for groups, for files, for names that there are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from command_line import Run

from wsm.testing import LocalGroup


def test_it_tells_sentences_json_and_as_many_transitions_as_asked(
    local: LocalGroup, wsm: Run, tmp_path: Path
) -> None:
    local.update(1)
    code, out, _ = wsm("explain", "tested")
    assert code == 0
    assert "tested serves version 1." in out
    assert "weights: PREPARED --commit--> NORMAL" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("  "))
    assert "Last transitions" not in wsm("explain", "tested", "--last", "0").out
    told = json.loads(wsm("explain", "tested", "--json").out)
    assert told["serving"] is True
    assert [rank["life"] for rank in told["ranks"]] == ["alive"] * len(told["ranks"])
    saved = shutil.copy(local.segment.path, tmp_path / "wsm.saved")
    assert "serves version 1." in wsm("explain", str(saved)).out
