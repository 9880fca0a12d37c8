from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run
from small_model import SPECS, publish

from wsm.strategies import DeltaSource, MemoryTarget, SnapshotSource, load

BYTES = 2 * sum(spec.nbytes for spec in SPECS)


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    directory = tmp_path / "versions"
    publish(directory, 1)
    publish(directory, 2)
    return directory


def loaded(source: DeltaSource | SnapshotSource, target: MemoryTarget, version: int) -> str:
    strategy = "delta" if isinstance(source, DeltaSource) else "ipc_snapshot"
    return load(source, target, name=strategy, version=version).digest


def test_a_delta_between_two_versions_is_put_beside_them_for_every_rank(wsm: Run, versions: Path) -> None:
    ended = wsm("delta", versions, "--base", 1, "--version", 2)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "delta from version 1 to 2"
    assert str(versions / "deltas" / "2") in ended.out
    assert "tensors: 0 unchanged, 4 changed, 0 in full" in ended.out
    for rank in range(2):
        target = MemoryTarget(SPECS)
        whole = SnapshotSource(versions, rank, device_id=rank, world_size=2)
        loaded(whole, target, 1)
        changes = DeltaSource(versions, rank, device_id=rank, world_size=2, fallback="refuse")
        assert loaded(changes, target, 2) == loaded(whole, MemoryTarget(SPECS), 2)


def test_the_findings_as_json(wsm: Run, versions: Path) -> None:
    found = json.loads(wsm("delta", versions, "--base", 1, "--version", 2, "--json").out)
    assert (found["base_version"], found["version"], found["whole"]) == ("1", "2", None)
    assert found["whole_bytes"] == BYTES
    assert found["ratio"] == found["bytes"] / BYTES
    again = json.loads(wsm("delta", versions, "--base", 1, "--version", 2, "--json").out)
    assert again["manifest_digest"] == found["manifest_digest"]


def test_a_delta_that_would_not_pay_is_not_written(wsm: Run, versions: Path) -> None:
    ended = wsm("delta", versions, "--base", 1, "--version", 2, "--crossover", 0)
    assert ended.code == 0
    assert "none written: it would take" in ended.out
    assert not (versions / "deltas" / "2").exists()


@pytest.mark.parametrize(
    ("base", "version", "said"),
    [(1, 7, "versions/7"), (5, 2, "version 5 is not published"), (2, 2, "its own base")],
)
def test_what_is_not_there_is_named(wsm: Run, versions: Path, base: int, version: int, said: str) -> None:
    ended = wsm("delta", versions, "--base", base, "--version", version)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("\n") == 1
    assert said in ended.err


def test_a_damaged_version_is_found_while_it_is_read(wsm: Run, versions: Path) -> None:
    part = versions / "versions" / "2" / "model_state.tp1.1.part0.pdparams"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    ended = wsm("delta", versions, "--base", 1, "--version", 2)
    assert ended.code == 1
    assert f"{part} is damaged at tensor" in ended.err
    assert not (versions / "deltas" / "2").exists()
