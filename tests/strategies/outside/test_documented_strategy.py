"""The strategy that the documentation writes is one: known everywhere, and held to what all are."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import yaml
from npz_package import block, publish

from tests.raising import matches
from wsm import load_config
from wsm.errors import WsmError
from wsm.strategies import MemoryTarget, TensorSpec, errors, inspect, load
from wsm.strategies.errors import UnreadableFileError, VersionMismatchError
from wsm.worker.loading import Sources

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(4)}
SPECS = (TensorSpec("w", "F32", (2, 3)), TensorSpec("steps", "I64", ()))

pytestmark = pytest.mark.usefixtures("npz")


@pytest.fixture
def config(tmp_path):
    """The page's wsm.yaml, for a directory of the test's."""
    content = yaml.safe_load(block("yaml"))
    content["npz"]["directory"] = str(tmp_path)
    file = tmp_path / "wsm.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_it_is_loaded_by_name_from_what_a_configuration_says_and_reported(config, tmp_path):
    publish(tmp_path, 7, ARRAYS)
    source, target = Sources(load_config(config)).of(1), MemoryTarget(SPECS)
    assert source.file == str(tmp_path / "rank1.npz")
    assert inspect(source, name="npz", target=target).version == "7"
    report = load(source, target, name="npz", version=7)
    assert (report.strategy, report.version, report.tensors, report.bytes) == ("npz", "7", 2, 32)
    assert all(target.readable(name) == array.tobytes() for name, array in ARRAYS.items())


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"version": 8, **ARRAYS}, VersionMismatchError),
        ({"version": 7, "w": ARRAYS["w"]}, errors.not_covered),
        (ARRAYS, UnreadableFileError),
        (b"no weights today", UnreadableFileError),
    ],
    ids=["another version", "a tensor is missing", "no version", "something else"],
)
def test_what_is_wrong_is_refused_by_its_file_before_anything_is_touched(config, tmp_path, content, error):
    file = tmp_path / "rank0.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, **content)
    tainted = []
    source = Sources(load_config(config)).of(0)
    with pytest.raises(WsmError, match=re.escape(str(file))) as caught:
        load(source, MemoryTarget(SPECS), name="npz", version=7, taint=lambda: tainted.append(1))
    assert matches(caught.value, error)
    assert not tainted


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_line_plans_for_it_and_reads_it(config, tmp_path):
    publish(tmp_path, 7, ARRAYS)

    def said(command):
        line = [sys.executable, "-m", "wsm.cli.main", command, config, "--rank", "1", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    plan = said("memory")
    assert (plan["strategy"], plan["version"], plan["bytes"]) == ("npz", "7", 32)
    (held,) = said("digest")
    target = MemoryTarget(SPECS)
    loaded = load(Sources(load_config(config)).of(1), target, name="npz")
    assert (held["rank"], held["version"], held["digest"]) == (1, "7", loaded.digest)
