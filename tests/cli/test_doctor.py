"""``wsm doctor`` says what this host has, and how to get what is missing."""

from __future__ import annotations

import importlib.util
import json
import re
import resource
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.extras import PACKAGES
from wsm.cli.doctor import EXTRAS, doctor

PAGE = Path(__file__).parents[2] / "docs" / "install.md"


def findings() -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(doctor, ["--json"])
    return {"exit code": done.exit_code, **{each["subject"]: each for each in json.loads(done.stdout)}}


def test_every_extra_of_the_library_is_looked_at():
    printed = set(re.findall(r"^pip install '\.\[([\w-]+)\]'", PAGE.read_text(), re.MULTILINE))
    assert {"gpu", *EXTRAS} == printed  # which is the same module as cpu's
    brought = {name for _, names in EXTRAS.values() for name in names}
    assert brought == {name for name, package in PACKAGES.items() if package.extras}


@pytest.mark.slow
def test_a_host_that_can_run_groups_is_told_so_line_by_line():
    done = CliRunner().invoke(doctor, [])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok       wsm ")
    assert all(re.match(r"(ok|missing)  +\S", line) for line in lines)
    assert any("private to this user" in line for line in lines)


def test_an_extra_that_is_missing_is_no_failure_and_says_how_to_get_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    found = findings()
    assert (found["exit code"], found["[http]"]["state"]) == (0, "missing")
    assert "uvicorn not installed; for wsm serve" in found["[http]"]["found"]
    assert found["[http]"]["fix"] == "pip install 'wsm[http]'"


@pytest.mark.slow
def test_few_descriptors_are_named_with_the_limit_to_raise(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    found = findings()
    assert (found["open files"]["state"], found["open files"]["found"]) == ("missing", "256 (at most 4096)")
    assert "ulimit -n" in found["open files"]["fix"]


@pytest.mark.slow_but
@pytest.mark.parametrize("mode", [0o777, None])
def test_shared_memory_in_which_no_group_can_run_fails_with_the_way_out(tmp_path, monkeypatch, mode):
    place = tmp_path / "memory"
    if mode is None:
        place.symlink_to(tmp_path)
    else:
        place.mkdir()
        place.chmod(mode)
    monkeypatch.setenv("WSM_DIRECTORY", str(place))
    found = findings()
    assert (found["exit code"], found["/dev/shm"]["state"]) == (1, "wrong")  # noqa: S108 - the place's name
    assert str(place) in found["/dev/shm"]["found"]  # noqa: S108 - likewise
