"""What a file of tests leaves behind turns a run red, at that file; what others leave does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import SESSION, group_name, leftovers, mark, shared_names
from wsm.config import WsmConfig
from wsm.group_segment import own_group
from wsm.shared_directory import SHARED_MEMORY, VARIABLE, private_directory
from wsm.signals.fastdeploy import EngineWord, EngineWordKind

REPOSITORY = Path(__file__).parent.parent

LEAKS = """
import subprocess, sys
from pathlib import Path
from tests import leftovers
from wsm.shared_directory import private_directory

leftovers.PATIENCE_S = 0.1

def test_that_leaks():
    {leak}

def test_that_does_not():
    print(f"\\nmemory in {{private_directory()}}")
"""
CLEAN = "def test_another_file(): ...\n"
A_GROUP = 'Path(private_directory(), "wsm.any").touch()'
MEMORY = 'Path(private_directory(), "wsm-buckets.any").touch()'
#: Its outputs are elsewhere, or who reads those of the run would wait for it.
A_PROCESS = 'subprocess.Popen(["sleep", "8"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)'


@pytest.fixture
def run(tmp_path):
    """Run two files of tests as a session of their own; the first one leaks."""

    def of(leak: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_first.py").write_text(LEAKS.format(leak=leak))
        (tmp_path / "test_second.py").write_text(CLEAN)
        options = ["-p", "tests.leftovers", "-p", "no:cacheprovider", "-c", os.devnull, "-v", "-s"]
        without_marks = {name: value for name, value in os.environ.items() if name != SESSION}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)],
            env=without_marks,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leak", "said"), [(A_GROUP, "shared memory"), (MEMORY, "shared memory"), (A_PROCESS, "processes")]
)
def test_the_file_of_tests_that_leaks_is_the_one_that_fails_and_its_memory_goes(run, leak, said):
    before = shared_names()
    done = run(leak)
    assert done.returncode == 1
    assert f"tests of this file left {said} behind" in done.stdout
    assert re.search(r"^ERROR \S*test_first.py::test_that_does_not", done.stdout, re.MULTILINE)
    assert "3 passed, 1 error" in done.stdout
    assert shared_names() == before
    [directory] = re.findall(r"^memory in (.*)$", done.stdout, re.MULTILINE)
    assert directory != os.environ[VARIABLE]
    assert not Path(directory).exists()


def test_memory_of_another_session_is_not_looked_at():
    before = shared_names()
    other = SHARED_MEMORY / f"{private_directory().name}-other"
    other.mkdir()
    (other / "wsm-buckets.any").touch()
    try:
        assert leftovers(before) == []
    finally:
        (other / "wsm-buckets.any").unlink()
        other.rmdir()


def test_a_word_of_ours_counts_as_left_while_it_is_there():
    before = shared_names()
    with EngineWord.create(EngineWordKind.WEIGHTS, group_name()) as word:
        assert leftovers(before) == [word.path.name]
        word.unlink()
    assert leftovers(before) == []


def test_a_group_of_ours_counts_as_left_while_it_is_there():
    before = shared_names()
    config = WsmConfig(name=group_name(), ranks=1)
    with own_group(config) as segment:
        assert f"wsm.{config.name}" in leftovers(before)
        assert mark() in config.name
        segment.unlink()
    assert leftovers(before) == []
