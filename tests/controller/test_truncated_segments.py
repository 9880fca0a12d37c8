"""A segment whose file was cut short is an error with a type, wherever a controller comes upon it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from living_group import Program

from wsm.errors import InternalError
from wsm.signals.errors import SegmentTruncatedError
from wsm.signals.segment import Segment
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("truncating_controller.py")


def test_a_controller_names_a_truncated_segment_before_within_and_after_a_command(group):
    group.boot().close()
    for program in group.programs.values():
        program.freeze()  # none of them ends the command, or touches what is gone
    controller = Program(PROGRAM, group.name, str(group.directory))
    try:
        said = controller.says("over")
        assert controller.process.wait(60) == 0
    finally:
        controller.close()
    assert said["errors"] == {
        "the command under way": "SegmentTruncatedError",
        "status": "SegmentTruncatedError",
        "another command": "SegmentTruncatedError",
    }
    assert said["message"].startswith(f"{group.directory}/wsm.{group.name} has 4096 bytes where ")


def test_its_owner_can_still_remove_and_close_it(tmp_path):
    segment = Segment.create_or_adopt(
        "cut", world_size=1, run_id="r", configuration_digest=0, directory=tmp_path
    )
    os.truncate(segment.path, 0)
    with pytest.raises(SegmentTruncatedError):
        segment.require_whole()
    segment.unlink()
    segment.close()
    assert list(tmp_path.iterdir()) == []


def test_status_names_a_word_that_no_build_writes(tmp_path):
    specs = [TensorSpec("layer", "F32", (4,))]
    with LocalGroup(lambda _: InMemoryRunner(specs), tmp_path) as made:
        with closing(Segment.attach("tested", directory=tmp_path)) as segment:
            segment.words[segment.layout.command] = 1 << 60
        with pytest.raises(InternalError) as caught:
            made.controller.status()
    assert caught.value.code == "word-format"
