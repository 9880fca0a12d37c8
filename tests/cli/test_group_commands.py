"""A group of real rank processes, driven by ``wsm`` from outside."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from command_line import Run, Start
from commanded_group import PATIENCE_S, LivingGroup
from small_model import publish, publish_cut

from tests.leftovers import group_name
from wsm.signals.fastdeploy import EngineWord, EngineWordKind

pytestmark = pytest.mark.processes


def test_update_clear_and_status_from_a_shell(group: LivingGroup, wsm_process: Run) -> None:
    updated = wsm_process("update", group.name, "--version", 1)
    assert (updated.code, updated.err) == (0, "")
    assert re.fullmatch(
        rf"{group.name} serves version 1 \(epoch 1, sequence \d+, .* ms\)(; .*)?\n", updated.out
    )

    status = wsm_process("status", group.name)
    assert (status.code, status.err) == (0, "")
    assert status.out.startswith(f"{group.name} serves version 1.")
    assert max(map(len, status.out.splitlines())) <= 80

    cleared = wsm_process("clear", group.name)
    assert (cleared.code, cleared.err) == (0, "")
    assert cleared.out.startswith(f"{group.name} cleared (epoch 1, sequence ")
    assert group.until(lambda now: now.state == "CLEARED").over


def test_a_receipt_as_json_names_request_and_digests(group: LivingGroup, wsm: Run) -> None:
    receipt = json.loads(wsm("update", group.name, "--version", 1, "--request-id", "night-7", "--json").out)
    assert receipt["request_id"] == "night-7"
    assert receipt["version"] == "1"
    assert len({rank["manifest_digest"] for rank in receipt["ranks"]}) == 1
    assert [action["name"] for action in receipt["ranks"][0]["actions"]].count("load_weights") == 1


def test_one_half_goes_and_comes_and_every_answer_says_what_is_missing(group: LivingGroup, wsm: Run) -> None:
    group.serve(1)
    cleared = wsm("clear", group.name, "--tags", "kv_cache")
    assert cleared.code == 0
    assert (
        "released the KV cache; still holds version 1, and does not serve without the KV cache" in cleared.out
    )
    status = wsm("status", group.name).out
    assert f"'wsm update {group.name} --tags kv_cache' rebuilds the KV cache" in " ".join(status.split())
    assert json.loads(wsm("status", group.name, "--json").out)["missing"] == ["kv_cache"]
    receipt = json.loads(wsm("update", group.name, "--tags", "kv_cache", "--json").out)
    assert (receipt["outcome"], receipt["loaded"], receipt["missing"]) == ("updated", False, [])
    assert wsm("status", group.name).out.startswith(f"{group.name} serves version 1.")
    away = wsm("clear", group.name, "--tags", "weights").out
    assert "released the weights; holds the KV cache, and does not serve without the weights" in away


@pytest.mark.parametrize("tags", ["weight", "kv", "weights,weights", ""])
def test_a_part_of_a_tag_is_wrong_usage(group: LivingGroup, wsm: Run, tags: str) -> None:
    ended = wsm("clear", group.name, "--tags", tags)
    assert ended.code == 2
    assert "weights, kv_cache" in ended.err


def test_a_failed_update_is_one_line_that_says_what_the_group_holds(group: LivingGroup, wsm: Run) -> None:
    publish_cut(group.snapshots, 8)
    group.serve(1)
    failed = wsm("update", group.name, "--version", 8)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith("error: update failed on rank ")
    assert "[the group serves version 1]" in failed.err
    assert "--traceback" in failed.err
    assert failed.err.count("\n") == 1
    assert "serves version 2" in wsm("update", group.name, "--version", 2).out


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_traceback_of_a_failed_rank_is_shown_on_request(
    group: LivingGroup, wsm: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("WSM_TRACEBACK", "1")
    publish_cut(group.snapshots, 8)
    options = ["--traceback"] if how == "option" else []
    failed = wsm(*options, "update", group.name, "--version", 8)
    assert failed.code == 1
    assert re.search(r"-- traceback of rank \d --\nTraceback", failed.err)
    assert "truncated" in failed.err


def test_a_hot_update_says_how_long_it_staged_and_how_short_it_stopped(group: LivingGroup, wsm: Run) -> None:
    group.serve(1)
    updated = wsm("update", group.name, "--version", 2, "--hot")
    assert (updated.code, updated.err) == (0, "")
    assert re.fullmatch(
        rf"{group.name} serves version 2 \(.*, staged for [\d.]+ ms while serving\); "
        r"stood still for \d+\.\d\d ms\n",
        updated.out,
    )
    receipt = json.loads(wsm("update", group.name, "--version", 1, "--hot", "--json").out)
    assert (receipt["hot"], receipt["version"], receipt["fallback"]) == (True, "1", None)
    assert receipt["staging_s"] > 0


def test_a_second_command_is_refused_or_waits_as_the_caller_asks(
    group: LivingGroup, wsm: Run, start_wsm: Start
) -> None:
    group.serve(1)
    group.stop(1)
    first = start_wsm("clear", group.name, "--deadline", 20)
    holder = group.until(lambda now: now.controller_pid is not None and not now.over).controller_pid
    refused = wsm("update", group.name, "--version", 2)
    assert refused.code == 1
    assert str(holder) in refused.err
    waiting = start_wsm("update", group.name, "--version", 2, "--wait", 20)
    group.resume(1)
    assert first.wait(20) == 0
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, err) == (0, "")
    assert "serves version 2" in out


def test_a_command_waits_for_a_group_that_starts_later(start_wsm: Start, tmp_path: Path) -> None:
    name = group_name("later")
    waiting = start_wsm("update", name, "--version", 1, "--wait", PATIENCE_S)
    group = LivingGroup(name, tmp_path)
    try:
        group.start()
        out, err = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, err) == (0, "")
        assert out.startswith(f"{name} serves version 1 ")
    finally:
        group.close()


def test_a_command_that_is_told_to_end_is_taken_back_before_the_process_ends(
    group: LivingGroup, start_wsm: Start
) -> None:
    group.serve(1)
    group.stop(1)
    command = start_wsm("update", group.name, "--version", 2)
    group.until(lambda now: not now.over)
    command.send_signal(signal.SIGTERM)
    assert "taking the command back" in command.stderr.readline()
    group.until(lambda now: now.operation == "ABORT")
    group.resume(1)
    _, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 128 + signal.SIGTERM
    assert "the command was taken back: the group serves version 1" in err
    assert group.until(lambda now: now.over).serving


def test_a_second_signal_leaves_at_once_and_the_group_decides(
    group: LivingGroup, wsm: Run, start_wsm: Start
) -> None:
    group.serve(1)
    group.stop(1)
    command = start_wsm("update", group.name, "--version", 2)
    group.until(lambda now: not now.over)
    command.send_signal(signal.SIGINT)
    assert "taking the command back" in command.stderr.readline()
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 130
    assert "interrupted twice" in err
    group.resume(1)
    assert "serves version 2" in wsm("update", group.name, "--version", 2).out


def test_status_and_commands_on_a_group_that_died(group: LivingGroup, wsm: Run) -> None:
    group.serve(1)
    group.kill(1)
    status = wsm("status", group.name)
    assert status.code == 0
    assert "has lost rank 1, and needs every rank" in status.out
    refused = wsm("clear", group.name)
    assert refused.code == 1
    assert "rank 1 is gone" in refused.err
    group.kill(0)
    assert "is dead: none of its processes lives" in wsm("status", group.name).out


def test_status_lists_every_group_in_a_line(group: LivingGroup, wsm: Run) -> None:
    group.serve(2)
    everything = wsm("status")
    assert everything.code == 0
    assert f"{group.name} serves version 2" in everything.out.splitlines()
    names = [status["name"] for status in json.loads(wsm("status", "--json").out)]
    assert group.name in names


def test_watching_shows_changes_until_the_group_is_gone(group: LivingGroup, start_wsm: Start) -> None:
    watching = start_wsm("status", group.name, "--watch", "--json", "--every", 0.02)
    assert json.loads(watching.stdout.readline())["state"] == "CLEARED"
    group.serve(1)
    assert any(json.loads(line)["serving"] for line in iter(watching.stdout.readline, ""))
    group.segment.unlink()
    _, err = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 2
    assert f"no group '{group.name}'" in err


def test_a_signal_ends_a_watch_without_a_traceback(group: LivingGroup, start_wsm: Start) -> None:
    watching = start_wsm("status", group.name, "--watch", "--every", 0.02)
    assert group.name in watching.stdout.readline()
    watching.send_signal(signal.SIGHUP)
    _, err = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 128 + signal.SIGHUP
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err


def test_log_lines_are_json_on_request_and_results_stay_clean(group: LivingGroup, wsm_process: Run) -> None:
    done = wsm_process("--log-format", "json", "update", group.name, "--version", 1, "--json")
    events = [json.loads(line)["event"] for line in done.err.splitlines()]
    assert {"command.issued", "command.decided", "command.finished"} <= set(events)
    assert json.loads(done.out)["outcome"] == "updated"


@pytest.mark.needs("libatomic")
def test_the_engines_own_words_follow_a_command_that_knows_the_configuration(
    group: LivingGroup, wsm: Run, tmp_path: Path
) -> None:
    file = tmp_path / "wsm.yaml"
    file.write_text(f"{group.config_file.read_text()}engine_words: {{suffixes: [{group.name}]}}\n")
    missing = wsm("update", group.name, "--version", 1, "--config", file)
    assert missing.code == 1
    assert "there is no engine word" in missing.err
    with EngineWord.create(EngineWordKind.WEIGHTS, group.name, -2) as word:
        try:
            assert wsm("update", group.name, "--version", 1, "--config", file).code == 0
            assert word.read() == 0
            assert wsm("clear", group.name, "--config", file).code == 0
            assert word.read() == -2
        finally:
            word.unlink()


def test_an_update_that_fails_says_whether_the_version_before_serves_again(
    group: LivingGroup, wsm: Run
) -> None:
    group.serve(1)
    publish(group.snapshots, 3)
    path = max((group.snapshots / "versions" / "3").glob("*tp1.*"), key=lambda file: file.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    failed = wsm("update", group.name, "--version", 3, "--on-failure", "restore", "--restore-deadline", 60)
    assert (failed.code, "version 1 serves again" in " ".join(failed.err.split())) == (1, True)
    assert json.loads(wsm("status", group.name, "--json").out)["serving"]
    failed = wsm("update", group.name, "--version", 3, "--on-failure", "clear")
    assert "serves again" not in failed.err
    assert not json.loads(wsm("status", group.name, "--json").out)["serving"]


def test_what_one_process_prepares_others_commit_or_take_back(group: LivingGroup, wsm: Run) -> None:
    group.serve(1)
    prepared = wsm("prepare", group.name, "--version", 2, "--request-id", "two", "--lease", 60)
    assert prepared.code == 0
    assert "the old weights serve until the decision" in prepared.out
    assert f"wsm commit {group.name} --request-id two" in prepared.out
    status = " ".join(wsm("status", group.name).out.split())
    assert "waits for its caller's decision" in status
    assert f"'wsm commit {group.name} --request-id two' serves it" in status
    assert "B are staged on each rank; its lease lasts" in status
    told = json.loads(wsm("status", group.name, "--json").out)
    assert 0 < told["decision_left_s"] <= 60
    assert all(rank["staged_bytes"] > 0 for rank in told["ranks"])
    explained = json.loads(wsm("explain", group.name, "--json").out)
    assert f"wsm commit {group.name} --request-id two" in explained["commands"]
    busy = wsm("clear", group.name)
    assert (busy.code, busy.out) == (1, "")
    assert "two" in busy.err
    taken_back = json.loads(wsm("abort", group.name, "--json").out)
    assert (taken_back["outcome"], taken_back["version"], taken_back["missing"]) == ("aborted", "1", [])
    assert "decision is final" in wsm("commit", group.name, "--request-id", "two").err
    receipt = json.loads(wsm("prepare", group.name, "--version", 2, "--request-id", "again", "--json").out)
    assert (receipt["outcome"], receipt["version"], receipt["lease_s"]) == ("prepared", "2", 300)
    assert receipt["staged_bytes"] > 0
    assert "serves version 2" in wsm("commit", group.name, "--request-id", "again").out
    assert json.loads(wsm("status", group.name, "--json").out)["ranks"][0]["staged_bytes"] == 0
    refused = wsm("prepare", group.name, "--version", 1, "--partial")
    assert (refused.code, "partial" in refused.err) == (1, True)
    assert "KV policy 'keep'" in wsm("prepare", group.name, "--version", 1, "--kv", "keep").err
    options = ("--in-place", "--partial", "--hot-fallback", "in-place", "--after", "held")
    wsm("prepare", group.name, "--version", 1, *options, "--request-id", "part")
    receipt = json.loads(wsm("commit", group.name, "--request-id", "part", "--json").out)
    assert (receipt["version"], receipt["partial"], receipt["hold"]["owner"]) == ("1", True, "unnamed")
    wsm("release", group.name)


def test_a_group_is_held_and_released_from_a_shell(group: LivingGroup, wsm: Run) -> None:
    group.serve(1)
    held = json.loads(wsm("hold", group.name, "--owner", "trainer", "--json").out)
    assert (held["outcome"], held["serving"], held["hold"]["owner"]) == ("held", False, "trainer")
    assert json.loads(wsm("status", group.name, "--json").out)["hold"]["owner"] == "trainer"
    refused = wsm("release", group.name, "--owner", "another")
    assert refused.code == 1
    assert "trainer" in refused.err
    released = json.loads(wsm("release", group.name, "--owner", "trainer", "--json").out)
    assert (released["outcome"], released["serving"], released["hold"]) == ("released", True, None)
