"""A rank ended by SIGKILL at each line of its walk through FastDeploy's check, in both loops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_job import LoopJob

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2
LOOPS = [("2025", True), ("2026", False)]


class Walked:
    """A clear and an update by the engine's word, in which rank `walker` ends itself at a line, if any."""

    def __init__(
        self, directory: Path, generation: str, *, block: bool, walker: int, ends_at: str = ""
    ) -> None:
        directory.mkdir()
        self.job = LoopJob(
            directory,
            generation,
            block=block,
            hurried=[(CLEARED, UPDATING)],
            walker=walker,
            ends_at=ends_at,
        )
        self.walker = walker
        try:
            self.job.start()
            self.job.asks(CLEARING)
            self.said = [[], []]
            for rank in (walker, 1 - walker):
                self.said[rank] = self.job.programs[rank].last_lines()
                if not any('"ended"' in line for line in self.said[rank]):
                    (directory / "torn").touch()  # what FastDeploy's collectives find, sooner or later
        finally:
            self.job.close()

    def events(self, rank: int) -> list[dict]:
        return [json.loads(line) for line in self.said[rank] if line.startswith('{"event"')]

    @property
    def lines(self) -> list[str]:
        """Where the rank came by; empty if it was ended there."""
        last = self.events(self.walker)[-1]
        return last["lines"] if last["event"] == "ended" else []

    def require_the_end_of_all(self) -> None:
        """The other rank says which is gone, unless it has left: it is in FastDeploy's collective then."""
        other = 1 - self.walker
        text = "\n".join(self.said[other])
        inside = [said["event"] for said in self.events(other) if said["event"] in ("entered", "left")]
        if "TornMeetingError" in text:
            assert inside[-1:] != ["entered"], text
        else:
            assert f"rank {self.walker} of group" in text, text
            assert f"ended while rank {other} was in entry" in text, text


@pytest.fixture
def walk(tmp_path: Path):
    """`walk(generation, block=..., walker=..., ends_at=...)`, in a directory of its own each time."""
    counted = iter(range(100_000))

    def walk(*loop, **more) -> Walked:
        return Walked(tmp_path / str(next(counted)), *loop, **more)

    return walk


@pytest.mark.slow
@pytest.mark.timeout(1200)  # some 150 jobs of a second each, on cores that may be busy
@pytest.mark.parametrize("walker", [0, 1])
@pytest.mark.parametrize(("generation", "block"), LOOPS)
def test_no_rank_waits_for_ever_for_one_that_is_killed_at_any_line(walk, generation, block, walker):
    whole = walk(generation, block=block, walker=walker)
    assert [said["version"] for said in whole.events(walker) if said["event"] == "left"][-1] == "1"
    assert len(whole.lines) > 50
    ended = 0
    for place in whole.lines:
        walked = walk(generation, block=block, walker=walker, ends_at=place)
        if not walked.lines:
            ended += 1
            walked.require_the_end_of_all()
    assert ended > len(whole.lines) // 2  # a line that waits for another rank is not come by each time


@pytest.mark.parametrize("walker", [0, 1])
def test_no_rank_waits_for_ever_for_one_that_is_killed_in_its_last_line(walk, walker):
    whole = walk("2026", block=False, walker=walker)
    walked = walk("2026", block=False, walker=walker, ends_at=whole.lines[-1])
    assert not walked.lines
    walked.require_the_end_of_all()
