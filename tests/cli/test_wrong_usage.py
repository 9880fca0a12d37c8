from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

from wsm.testing import LocalGroup

WRONG = {
    "an unknown command": ["upgrade", "policy"],
    "an unknown option": ["clear", "policy", "--now"],
    "an unknown option before the command": ["--quiet", "status"],
    "a missing name": ["update"],
    "an unknown policy": ["clear", "policy", "--in-flight", "wait"],
    "a version that is no number": ["update", "policy", "--version", "new"],
    "a negative version": ["update", "policy", "--version", "-1"],
    "a version beyond the words": ["update", "policy", "--version", str(1 << 40)],
    "a deadline of zero": ["clear", "policy", "--deadline", "0"],
    "an endless deadline": ["clear", "policy", "--deadline", "inf"],
    "a deadline that is no number": ["clear", "policy", "--deadline", "nan"],
    "a negative wait": ["clear", "policy", "--wait", "-1"],
    "a group that is not there": ["status", "no-such-group"],
    "a name that no group can have": ["clear", "../etc/passwd"],
    "a configuration that is not there": ["update", "policy", "--config", "/no/such/file.yaml"],
    "watching every group": ["status", "--watch"],
    "an owner for a server, which names its own": [
        *("--url", "http://127.0.0.1:1", "hold", "policy"),
        *("--owner", "trainer"),
    ],
    "a level that is none": ["--log-level", "loud", "status"],
    "an inspection of no rank": ["inspect", "."],
    "a conversion of nothing": ["convert", "/no/such/file", "elsewhere"],
    "a journal that is not there": ["journal", "/no/such/file"],
}
WRONG_EXAMPLES = {
    "no ranks": ["rollout", "--name", "policy", "--ranks", "0"],
    "no steps": ["demo", "--steps", "0"],
    "a rollout without a name": ["rollout"],
}


@pytest.mark.parametrize("name", [*WRONG, *WRONG_EXAMPLES])
def test_wrong_usage_is_one_line_and_code_2(wsm: Run, example: Run, name: str) -> None:
    ended = wsm(*WRONG[name]) if name in WRONG else example(*WRONG_EXAMPLES[name])
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1


def test_what_click_complains_about_says_where_the_help_is(wsm: Run) -> None:
    assert "see 'wsm clear --help'" in wsm("clear", "policy", "--now").err


def test_a_group_that_is_not_there_is_named_beside_those_that_are(wsm: Run, local: LocalGroup) -> None:
    ended = wsm("update", "no-such-group", "--version", "1")
    assert ended.code == 2
    assert "'no-such-group'" in ended.err
    assert local.config.name in ended.err


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2",
        "just words",
        "name: other\nranks: 2\n",
        "name: policy\nranks: two\n",
        "name: policy\nranks: 2\nspeed: 9\n",
        "group: {name: other}\n",
        "group: {ranks: 2, speed: 9}\n",
    ],
)
def test_a_configuration_that_cannot_be_used_is_wrong_usage(wsm: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "wsm.yaml"
    file.write_text(text)
    ended = wsm("clear", "policy", "--config", file)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert str(file) in ended.err
