"""What is said in each situation, word for word: a person reads it at night.

``python tests/status/test_sentences.py`` writes the texts anew; read what changed before you commit it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from situations import SITUATIONS, foreign

from wsm.signals.errors import RoleBusyError, go_on_or_end
from wsm.states.words import Operation
from wsm.status import explain, status_line, status_of, status_text
from wsm.status.facts import ForeignPid
from wsm.status.rules import find

SERVING = (
    "serving",
    "a commit whose version nobody wrote",
    "a hot update that failed",
    "nothing to do",
    "serving, and a step broke in the epoch before",
    "serving behind a release",
    "serving behind a restore",
    "a hold that is taken back",
    "staging",
    "prepared by a process that decides",
    "prepared by a process that decides, and that is stopped",
    "prepared under a lease",
)
TEXTS = Path(__file__).with_name("texts")


def file_of(situation: str) -> Path:
    return TEXTS / f"{situation.replace(' ', '_')}.txt"


def told_of(situation: str) -> str:
    """What ``wsm explain`` and ``wsm status`` say of it."""
    group = SITUATIONS[situation]
    return f"{explain(group).text()}\n\n=== wsm status\n{status_text(group)}\n"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_situation_is_told_in_these_words(situation):
    assert told_of(situation) == file_of(situation).read_text()


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_text_fits_80_columns_and_every_mapping_is_json(situation):
    explanation = explain(SITUATIONS[situation])
    assert all(len(line) <= 80 for line in told_of(situation).splitlines())
    assert len(status_line(SITUATIONS[situation])) <= 80
    told = json.loads(json.dumps(explanation.to_mapping()))
    assert told["headline"] == explanation.headline
    assert told["serving"] is (situation in SERVING)
    status = status_of(SITUATIONS[situation])
    assert status.serving is (situation in SERVING)
    assert status.headline in explanation.headline or status.because in explanation.headline
    assert json.loads(json.dumps(status.to_mapping()))["advice"] == list(explanation.advice)
    assert "(NONE)" not in status.sentence(), "an epoch that is being entered has no command"


def test_no_text_is_left_of_a_situation_that_is_gone():
    assert {path.name for path in TEXTS.iterdir()} == {file_of(situation).name for situation in SITUATIONS}


def test_who_does_not_serve_is_told_what_to_do():
    speechless = [name for name, group in SITUATIONS.items() if not explain(group).advice]
    assert set(speechless) == {
        "serving",
        "serving, and a step broke in the epoch before",
        "serving behind a release",
        "serving behind a restore",
        "a hot update that failed",
        "nothing to do",
        "no segment",
        "another layout",
    }


def advised(situation: str) -> tuple[str, list[str]]:
    """The whole advice of a situation, and the commands in it."""
    found = find(SITUATIONS[situation])
    return " ".join(one.text for one in found.advice), [each for one in found.advice for each in one.commands]


def test_the_rest_of_a_lease_counts_from_the_last_rank_that_has_prepared():
    status = status_of(SITUATIONS["prepared under a lease"])
    assert status.decision_left_s == 58.0
    assert [rank["staged_bytes"] for rank in status.to_mapping()["ranks"]] == [3 << 19] * 2


def test_the_end_of_a_supervisor_that_has_the_controller_role_is_never_advised():
    text, commands = advised("a stopped supervisor that has the controller role")
    assert commands == ["kill -CONT 800"]
    assert "by itself" not in text
    _, commands = advised("a stopped controller of a command that all have prepared")
    assert commands == ["kill -CONT 900", "kill -9 900"]
    for supervisor, ended in ((True, False), (False, True)):
        told = [
            str(RoleBusyError(path="p", pid=8, waited_s=0, stopped=True, supervisor=supervisor)),
            go_on_or_end(8, stopped=True, supervisor=supervisor),
        ]
        assert all("let it go on (kill -CONT 8)" in one and ("kill -9 8" in one) is ended for one in told)


def test_a_step_that_broke_before_the_epoch_began_is_no_fault_of_this_one():
    joining = SITUATIONS["a survivor whose step broke before the epoch began"]
    for supervisor_life in ("alive", "dead"):
        found = find(replace(joining, supervisor_life=supervisor_life))
        assert (found.code, found.ranks) == ("joining", (0,))
        assert not [command for one in found.advice for command in one.commands]


@pytest.mark.parametrize(
    "situation",
    ["a restore that was refused, since what served is a part", "a dead rank of a group that served a part"],
)
def test_a_version_that_is_a_part_is_never_to_be_loaded_by_its_number(situation):
    text, commands = advised(situation)
    assert "--version 3" not in text
    assert not [command for command in commands if command.startswith("wsm")]
    assert "publish a whole version V" in text
    assert "wait" not in text  # for a supervisor that has given up


def test_a_version_whose_load_failed_is_not_promised_to_serve_again():
    text, _ = advised("an update to the version that served, which failed")
    assert "if it fails again, publish a whole version V" in text
    assert "makes it serve" not in text


def test_a_wait_for_a_supervisor_that_restores_has_an_end():
    text, commands = advised("a restore that failed")
    assert "a few times: wait. If it does not serve soon" in text
    assert commands == ["wsm update policy --version 3"]


def test_a_wait_names_whom_it_is_for_and_what_is_left():
    (wait, *_) = explain(SITUATIONS["a vote that is missing"]).waits
    assert (wait.rank, wait.ranks, wait.seconds, wait.left_s) == (0, (1,), 3.0, 57.0)
    assert SITUATIONS["a vote that is missing"].command.operation is Operation.UPDATE


def test_a_process_of_another_container_that_restores_is_named_as_one():
    owed = SITUATIONS["an update in place that failed, whose group has neither caller nor keeper"]
    kept = find(replace(owed, supervisor_pid=foreign(1), supervisor_life="alive")).because
    assert "its supervisor (process 1 of another container (pid namespace 4026532211)) tries" in kept
    called = find(replace(owed, controller_pid=ForeignPid(0))).because
    assert called.endswith("; a process of another container restores it")


if __name__ == "__main__":
    TEXTS.mkdir(exist_ok=True)
    for old in TEXTS.iterdir():
        old.unlink()
    for name in SITUATIONS:
        file_of(name).write_text(told_of(name))
