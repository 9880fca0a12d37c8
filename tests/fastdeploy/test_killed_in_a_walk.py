"""A rank ended by SIGKILL at each line of its walk through FastDeploy's check or wsm's poll, in all loops."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from living_group import eventually
from loop_job import LoopJob

from wsm import RefusedError, WsmError
from wsm.signals.errors import RoleBusyError
from wsm.states.errors import CommandOpenError

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2
LOOPS = [("2025", True), ("2026", False), ("2026", True)]
BOTH = {"tags": "weight,kv_cache"}
CONTROLS = [("sleep", BOTH), ("wakeup", BOTH), ("update_weights", {"version": "1"})]


class Walked:
    """A clear and an update in which rank `walker` ends itself at a line, if any.

    The engine asks for them by its word, for the update twice where the first `fails`; where the loop
    `polls`, a trainer commands them; in V1 they are `CONTROLS`.
    """

    def __init__(
        self,
        directory: Path,
        generation: str,
        *,
        block: bool,
        walker: int,
        ends_at: str = "",
        fails: bool = False,
        polls: bool = False,
        v1: bool = False,
    ) -> None:
        directory.mkdir()
        self.job = LoopJob(
            directory,
            generation,
            block=block,
            hurried=[] if polls or v1 else [(CLEARED, UPDATING)] * (1 + fails),
            walker=walker,
            ends_at=ends_at,
            polls=polls,
            v1=v1,
            controls=len(CONTROLS),
        )
        self.walker = walker
        try:
            self.job.start()
            if fails:
                self.job.order(1, "write")
            if polls:
                (directory / "walk").touch()  # every rank has started
                self._commands()
                (directory / "end").touch()
            elif v1:
                for method, asked in CONTROLS:
                    self.job.control(method, **asked)
            else:
                self.job.asks(CLEARING)
            self.said = [[], []]
            for rank in (walker, 1 - walker):
                self.said[rank] = self.job.programs[rank].last_lines()
                if not any('"ended"' in line for line in self.said[rank]):
                    (directory / "torn").touch()  # what FastDeploy's collectives find, sooner or later
        finally:
            self.job.close()

    def _commands(self) -> None:
        """As a trainer would; what it is told where a rank is killed, tests of controllers say."""
        trainer = self.job.controller()
        with contextlib.suppress(WsmError):
            eventually(lambda: self._clears(trainer), "the loop to look at commands")
            trainer.update(1, deadline_s=20)

    def _clears(self, trainer) -> bool:
        """Whether the loop looks at commands by now, or never will."""
        try:
            trainer.clear(deadline_s=20)
        except (RefusedError, RoleBusyError, CommandOpenError):
            return self.job.programs[self.walker].has_ended()
        return True

    def events(self, rank: int) -> list[dict]:
        return [json.loads(line) for line in self.said[rank] if line.startswith('{"event"')]

    @property
    def lines(self) -> list[str]:
        """Where the rank came by; empty if it was ended there."""
        return next((said["lines"] for said in self.events(self.walker) if said["event"] == "ended"), [])

    def require_the_end_of_all(self) -> None:
        """The other rank says which is gone, unless it has left: it is in FastDeploy's collective then."""
        other = 1 - self.walker
        text = "\n".join(self.said[other])
        inside = [said["event"] for said in self.events(other) if said["event"] in ("entered", "left")]
        if "TornMeetingError" in text:
            assert inside[-1:] != ["entered"], text
        else:
            assert f"rank {self.walker} of group" in text, text
            assert f"ended while rank {other} was in" in text, text

    def require_an_answer_to_all(self) -> None:
        """The other rank has ended each request that it came into, and steps with all weights or not at all.

        Behind the last request it is in FastDeploy's barrier.
        """
        other = 1 - self.walker
        text = "\n".join(self.said[other])
        controlled = [said for said in self.events(other) if said["event"] == "controlled"]
        assert "TornMeetingError" in text, text
        for said in controlled:
            assert said["sleeping"][0] or said["held"], text
        for said in controlled[:-1]:
            assert "error" not in said, text
        if controlled and "error" in controlled[-1]:
            assert f"rank {self.walker}" in controlled[-1]["error"], text

    def require_a_good_update_of_the_next_job(self) -> None:
        """FastDeploy starts all ranks anew, in the same place."""
        job = LoopJob(self.job.directory, self.job.settings["generation"], block=self.job.settings["block"])
        for left in ("end", "torn", "board", "told"):
            (job.directory / left).unlink(missing_ok=True)
        try:
            job.start()
            job.asks(CLEARING)
            job.answers(CLEARED)
            job.publish(2)
            job.asks(UPDATING)
            job.answers(NORMAL)
            job.steps_on(2)
            job.end()
        finally:
            job.close()


@pytest.fixture
def walk(tmp_path: Path):
    """`walk(generation, block=..., walker=..., ends_at=...)`, in a directory of its own each time."""
    counted = iter(range(100_000))

    def walk(*loop, **more) -> Walked:
        return Walked(tmp_path / str(next(counted)), *loop, **more)

    return walk


def killed_at(walk, places, require, **loop) -> int:
    """End the walker at each of these lines; at how many it was.

    A line that waits for another rank is not come by each time.
    """
    ended = 0
    for place in places:
        walked = walk(ends_at=place, **loop)
        if not walked.lines:
            ended += 1
            require(walked)
    return ended


@pytest.mark.slow
@pytest.mark.timeout(1200)  # some 150 jobs of a second each, on cores that may be busy
@pytest.mark.parametrize("walker", [0, 1])
@pytest.mark.parametrize(("generation", "block"), LOOPS)
def test_no_rank_waits_for_ever_for_one_that_is_killed_at_any_line(walk, generation, block, walker):
    """The lines of an update that works, and those that only one that fails comes by."""
    loop = {"generation": generation, "block": block, "walker": walker}
    whole = walk(**loop)
    assert [said["version"] for said in whole.events(walker) if said["event"] == "left"][-1] == "1"
    assert len(whole.lines) > 50
    ended = killed_at(walk, whole.lines, Walked.require_the_end_of_all, **loop)
    others = [place for place in walk(**loop, fails=True).lines if place not in whole.lines]
    ended += killed_at(walk, others, Walked.require_the_end_of_all, **loop, fails=True)
    assert ended > len(whole.lines) // 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("walker", [0, 1])
def test_no_rank_waits_for_ever_for_one_that_is_killed_at_any_line_of_a_poll(walk, walker):
    loop = {"generation": "2026", "block": False, "walker": walker, "polls": True}
    lines = walk(**loop).lines
    assert len(lines) > 20
    assert killed_at(walk, lines, Walked.require_the_end_of_all, **loop) > len(lines) // 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("walker", [0, 1])
def test_a_rank_that_is_killed_at_any_line_of_a_control_request_lets_no_other_one_wait(walk, walker):
    """Every other line on rank 0, and those between on rank 1."""
    loop = {"generation": "2026", "block": False, "walker": walker, "v1": True}
    whole = walk(**loop)
    assert len([said for said in whole.events(walker) if said["event"] == "controlled"]) == len(CONTROLS)
    places = whole.lines[walker::2]
    assert killed_at(walk, places, Walked.require_an_answer_to_all, **loop) > len(places) // 2


@pytest.mark.slow
@pytest.mark.parametrize("walker", [0, 1])
def test_no_rank_waits_for_ever_for_one_that_is_killed_in_its_last_line(walk, walker):
    whole = walk("2026", block=False, walker=walker)
    walked = walk("2026", block=False, walker=walker, ends_at=whole.lines[-1])
    assert not walked.lines
    walked.require_the_end_of_all()
    walked.require_a_good_update_of_the_next_job()
