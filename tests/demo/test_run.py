"""The whole demo on a real group and a real trainer, a few steps long."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.demo import loop
from examples.demo.loop import read_journals, require_published, run_demo, run_loop, write_results
from examples.demo.report import Report, StepRecord
from examples.demo.settings import JOURNAL_DIRECTORY, DemoSettings
from examples.demo.trainer_process import Reply
from examples.rollout import errors as rollout_errors
from tests.raising import raising
from wsm.command import RankReport
from wsm.ending import Ending
from wsm.journal.entry import JournalEntry
from wsm.journal.replay import replay
from wsm.receipt import Outcome, Receipt

PATIENCE_S = 60.0


def slices(path: Path) -> dict[str, list[str]]:
    """Names of the slices per track of a trace file, in order of their start."""
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    names: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            names[f"{tracks[event['pid']]}/{event['cat']}"].append(event["name"])
    return names


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo")
    run_demo(DemoSettings(out, steps=3, batch=32), len)
    return out, json.loads((out / "report.json").read_text())


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
class TestARunOfThreeSteps:
    def test_every_step_serves_exactly_the_version_that_was_published_last(
        self, finished: tuple[Path, dict[str, Any]]
    ) -> None:
        _, report = finished
        assert [step["served_version"] for step in report["steps"]] == ["1", "2", "3"]
        assert [step["version"] for step in report["steps"]] == ["2", "3", "4"]
        assert report["totals"]["tokens_per_version"] == {"1": 128, "2": 128, "3": 128}
        assert report["totals"]["mixed_version_steps"] == 0

    def test_the_group_sees_the_trainers_own_probabilities(
        self, finished: tuple[Path, dict[str, Any]]
    ) -> None:
        _, report = finished
        assert report["totals"]["log_probability_gap"] < 1e-4

    def test_each_version_has_digests_of_its_own_on_every_rank(
        self, finished: tuple[Path, dict[str, Any]]
    ) -> None:
        _, report = finished
        digests = [digest for step in report["steps"] for digest in step["digests"].values()]
        assert len(digests) == len(set(digests)) == 6
        assert len({step["manifest_digest"] for step in report["steps"]}) == 3

    def test_every_rank_goes_round_the_whole_cycle_in_every_step(
        self, finished: tuple[Path, dict[str, Any]]
    ) -> None:
        out, _ = finished
        names = slices(out / "trace.json")
        cycle = ["NORMAL", "CLEARING", "CLEARED", "UPDATING", "PREPARED"]
        for rank in ("rank 0", "rank 1"):
            assert names[f"{rank}/weights"] == ["CLEARED", "UPDATING", "PREPARED", *cycle * 3, "NORMAL"]
            assert names[f"{rank}/actions"].count("load_weights") == 4
        assert names["controller/commands"] == ["generate", "clear", "update"] * 3
        assert names["trainer/training"] == ["train", "publish"] * 3

    def test_the_trainer_works_while_no_rank_holds_weights(
        self, finished: tuple[Path, dict[str, Any]]
    ) -> None:
        out, _ = finished
        events = [
            event
            for event in json.loads((out / "trace.json").read_text())["traceEvents"]
            if event["ph"] == "X"
        ]
        cleared = [event for event in events if event["name"] == "CLEARED" and event["cat"] == "weights"]
        for train in (event for event in events if event["name"] == "train"):
            around = [
                c
                for c in cleared
                if c["ts"] <= train["ts"] and c["ts"] + c["dur"] >= train["ts"] + train["dur"]
            ]
            assert len(around) == 2

    def test_the_picture_and_the_journals_are_there(self, finished: tuple[Path, dict[str, Any]]) -> None:
        out, _ = finished
        assert (out / "timeline.png").stat().st_size > 10_000
        assert {entry.rank for entry in read_journals(out / JOURNAL_DIRECTORY)} == {0, 1}


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
def test_with_hot_updates_the_group_serves_from_the_first_version_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = loop._TrainingLoop._train

    def train_until_others_were_served(self: loop._TrainingLoop, *arguments: Any) -> Reply:
        before, deadline = self._served_to_others(), time.monotonic() + PATIENCE_S
        learned = train(self, *arguments)
        while self._served_to_others() == before and time.monotonic() < deadline:
            os.sched_yield()
        return learned

    monkeypatch.setattr(loop._TrainingLoop, "_train", train_until_others_were_served)
    report = run_demo(DemoSettings(tmp_path, steps=3, batch=32, hot=True), len)
    assert [step.served_version for step in report.steps] == ["1", "2", "3"]
    totals = report.totals()
    assert totals["mixed_version_steps"] == 0
    assert totals["log_probability_gap"] < 1e-4
    assert totals["served_meanwhile"] > 0
    assert all(step.staging_ms > 0 and step.clear_ms == 0 for step in report.steps)
    names = slices(tmp_path / "trace.json")
    for rank in ("rank 0", "rank 1"):
        assert names[f"{rank}/weights"] == [
            *("CLEARED", "UPDATING", "PREPARED", "NORMAL"),
            *("UPDATING", "PREPARED", "NORMAL") * 3,
        ]
        assert names[f"{rank}/actions"].count("flip_weights") == 3
    assert names["controller/commands"] == ["generate", "update"] * 3
    assert (tmp_path / "timeline.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
def test_with_holds_the_group_stands_with_its_memory_while_it_is_updated_in_place(tmp_path: Path) -> None:
    report = run_demo(DemoSettings(tmp_path, steps=2, batch=16, hold=True), len)
    assert [step.served_version for step in report.steps] == ["1", "2"]
    assert report.totals()["mixed_version_steps"] == 0
    assert all(step.pause_ms > 0 and step.clear_ms == 0 for step in report.steps)
    names = slices(tmp_path / "trace.json")
    assert names["controller/commands"] == ["generate", "hold", "update", "release"] * 2
    for rank in ("rank 0", "rank 1"):
        assert "CLEARED" not in names[f"{rank}/weights"][1:]


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
def test_without_updates_the_group_serves_its_first_version_to_the_end(tmp_path: Path) -> None:
    report = run_demo(DemoSettings(tmp_path, steps=2, batch=16, update=False), len)
    totals = report.totals()
    assert totals["tokens_per_version"] == {"1": 128}
    assert totals["versions_served"] == totals["bytes"] == 0
    assert slices(tmp_path / "trace.json")["rank 0/weights"] == ["CLEARED", "UPDATING", "PREPARED", "NORMAL"]


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
def test_a_rank_that_is_killed_costs_time_and_no_version(tmp_path: Path) -> None:
    def kill_rank_one(_record: StepRecord) -> None:
        ranks = [
            child
            for child in psutil.Process().children()
            if child.cmdline()[2:3] == ["examples.rollout.worker_process"] and child.cmdline()[4] == "1"
        ]
        os.kill(ranks[0].pid, signal.SIGKILL)

    report, _ = run_loop(DemoSettings(tmp_path, steps=3, batch=16), kill_rank_one, Ending())
    assert [step.version for step in report.steps] == ["2", "3", "4"]
    assert not any(step.mixed_versions for step in report.steps)
    assert replay(read_journals(tmp_path / "journals")).impossible is None


def test_settings_that_cannot_be_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with raising("bad-demo-settings", match="steps is 0; give at least 1"):
        DemoSettings(tmp_path, steps=0)
    with raising("bad-demo-settings", match="hot is True; leave out --no-update"):
        DemoSettings(tmp_path, hot=True, update=False)
    with raising(rollout_errors.bad_model_shape, match="ranks"):
        DemoSettings(tmp_path, ranks=3)


def receipt_of(digests: dict[int, str], manifest: str) -> Receipt:
    ranks = tuple(RankReport(rank, digest=digest) for rank, digest in digests.items())
    return Receipt(
        "r", Outcome.UPDATED, 1, 2, 7, 6, manifest, loaded=True, seconds=0.1, pause_s=0.1, ranks=ranks
    )


def test_a_rank_with_other_bytes_than_were_published_is_named() -> None:
    published = {"digests": {"0": "aa", "1": "bb"}, "manifest_digest": "mm"}
    require_published(receipt_of({0: "aa", 1: "bb"}, "mm"), published)
    with raising("weights-differ", match="version 7: rank 1 has another digest"):
        require_published(receipt_of({0: "aa", 1: "xx"}, "mm"), published)
    with raising("weights-differ", match="the group's manifest"):
        require_published(receipt_of({0: "aa", 1: "bb"}, "nn"), published)


@pytest.mark.slow
@pytest.mark.damages_journals
def test_a_journal_that_the_tables_do_not_know_fails_the_run_after_its_report_is_written(
    tmp_path: Path,
) -> None:
    facts = {
        "machine": "weights",
        "source": "CLEARED",
        "event": "commit",
        "dest": "NORMAL",
        "guard": None,
        "cause": "",
    }
    (tmp_path / JOURNAL_DIRECTORY).mkdir()
    lines = [
        JournalEntry("started", 1, 1, 0, 0, 0, {"pid": 1}),
        JournalEntry("transition", 2, 2, 0, 1, 1, facts),
    ]
    (tmp_path / JOURNAL_DIRECTORY / "rank0.ndjson").write_text(
        "".join(line.to_line() + "\n" for line in lines)
    )
    report = Report({}, [StepRecord(1, None, 1, 0.5, {1: 4}, False)], 1.0)
    with raising("impossible-journal", match="rank 0"):
        write_results(tmp_path, report, [], chance=0.125)
    assert json.loads((tmp_path / "report.json").read_text())["totals"]["steps"] == 1
