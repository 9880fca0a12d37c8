"""Each seeded fault is found by its test: otherwise the test shows less than its name says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.seeded import MUTANTS, Mutant

REPOSITORY = Path(__file__).parent.parent.parent
SOURCES = REPOSITORY / "src"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_what_a_mutant_changes_stands_in_its_module_once(mutant: Mutant):
    assert (SOURCES / "wsm" / mutant.module).read_text().count(mutant.was) == 1
    path, _, function = mutant.test.partition("::")
    assert f"def {function}(" in (REPOSITORY / path).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_dies_by_its_test(mutant: Mutant, tmp_path: Path):
    sources = tmp_path / "src"
    shutil.copytree(SOURCES, sources)  # what is compiled, too: that is most of the time
    module = sources / "wsm" / mutant.module
    module.write_text(module.read_text().replace(mutant.was, mutant.becomes))
    played = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--timeout=60", mutant.test],
        env={**os.environ, "PYTHONPATH": str(sources)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 1, f"it lives: {played.stdout}"
    assert " failed" in played.stdout
