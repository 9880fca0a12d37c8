"""What the suite does on a machine that lacks something: it says so in one line, and fails only in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.needs import NEEDS, summary

REPOSITORY = Path(__file__).parent.parent

SUITE = """
import pytest

@pytest.mark.needs("spin", "gcc")
def test_a_model(): ...

@pytest.mark.needs("openssl")
@pytest.mark.parametrize("picture", ["a", "b"])
def test_a_picture(picture): ...

def test_that_needs_nothing(): ...
"""


@pytest.fixture
def run_without_programs(tmp_path):
    """Run a small suite on a PATH with nothing on it."""

    def run(text: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        suite = tmp_path / "test_small.py"
        suite.write_text(text)
        command = [sys.executable, "-m", "pytest", "-p", "tests.needs", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, *options, "-c", os.devnull, "--rootdir", str(tmp_path), "-rE", str(suite)],
            env={**os.environ, "CI": "", **environment, "PATH": str(tmp_path)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_what_a_machine_lacks_is_said_in_one_line_that_says_what_to_install(run_without_programs):
    done = run_without_programs(SUITE, "--numprocesses=2", CI="false")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-2] == (
        "skipped 3 tests: 2 need openssl (apt-get install openssl), "
        "1 needs spin and gcc (apt-get install spin gcc libc6-dev)"
    )
    assert "1 passed, 3 skipped" in done.stdout


@pytest.mark.slow
def test_in_ci_a_test_that_cannot_run_fails_and_names_itself_and_what_it_lacks(run_without_programs):
    done = run_without_programs(SUITE, CI="true")
    assert done.returncode == 1
    assert "1 passed, 3 errors" in done.stdout
    told = "test_small.py::test_a_picture[b] needs openssl (apt-get install openssl): openssl is not on PATH"
    assert told in done.stdout


@pytest.mark.slow
def test_a_need_that_is_not_in_the_table_is_refused(run_without_programs):
    done = run_without_programs('import pytest\n@pytest.mark.needs("luck")\ndef test_x(): ...\n')
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs 'luck'" in done.stderr


def test_every_need_says_how_to_get_it():
    for name in NEEDS:
        assert re.search(r"\((apt-get install )?\S.*\)$", summary(Counter([(name,)]))), name


def test_no_test_skips_past_the_table():
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {found}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        if path.name not in ("needs.py", "test_needs.py")
        for found in re.findall(
            r"\bskipif\b|\bimportorskip\b|\bpytest\.skip\b|\bskipTest\b", path.read_text()
        )
    ]
    assert not wrong, f"use pytest.mark.needs and the table in tests/needs.py: {wrong}"
