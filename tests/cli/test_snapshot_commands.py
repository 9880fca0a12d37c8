from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run
from small_model import SPECS, publish

BYTES = sum(spec.nbytes for spec in SPECS)


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    directory = tmp_path / "snapshots"
    publish(directory, 1)
    publish(directory, 2)
    return directory


def test_an_inspection_says_what_would_be_loaded(wsm: Run, snapshots: Path) -> None:
    ended = wsm("inspect", snapshots, "--rank", 1)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("rank 1 would load 2 tensors")
    assert f"({BYTES} bytes)" in lines[0]
    assert lines[1].split() == ["version", "2"]
    assert "equal on all ranks" in lines[2]
    assert "model_state.tp1.1.part0.pdparams" in ended.out


def test_an_inspection_as_json_names_the_digest_that_ranks_will_report(wsm: Run, tmp_path: Path) -> None:
    published = publish(tmp_path, 7)
    found = json.loads(wsm("inspect", tmp_path, "--rank", 0, "--version", 7, "--ranks", 2, "--json").out)
    assert found["manifest_digest"] == published.manifest_digest
    assert (found["version"], found["bytes"], found["manifest_scope"]) == ("7", BYTES, "group")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rank", 5], "rank 5"),
        (["--rank", 0, "--version", 9], "versions/9"),
        (["--rank", 0, "--ranks", 4], "4"),
        (["--rank", 0, "--device", 3], "model_state.tp0.3"),
    ],
)
def test_what_an_update_would_refuse_is_a_failed_inspection(
    wsm: Run, snapshots: Path, options: list[object], said: str
) -> None:
    ended = wsm("inspect", snapshots, "--shared", snapshots / "none", *options)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert said in ended.err


def test_a_damaged_part_is_found_without_a_group(wsm: Run, snapshots: Path) -> None:
    (part,) = (snapshots / "versions" / "2").glob("model_state.tp0.0.part0.pdparams")
    part.write_bytes(part.read_bytes()[:-1])
    ended = wsm("inspect", snapshots, "--rank", 0)
    assert ended.code == 1
    assert str(part) in ended.err


def test_there_is_nothing_to_convert_in_safetensors_files(wsm: Run, snapshots: Path, tmp_path: Path) -> None:
    ended = wsm("convert", snapshots / "versions" / "2", tmp_path / "converted")
    assert ended.code == 1
    assert "nothing has to be converted" in ended.err
    assert not (tmp_path / "converted").exists()


@pytest.mark.paddle
def test_a_pickle_is_refused_until_it_is_converted(wsm: Run, tmp_path: Path) -> None:
    import paddle  # noqa: PLC0415 - a second of import time, for this test alone

    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    paddle.save({"head.weight": paddle.ones([8, 16])}, str(old / "model_state.tp0.0.pdparams"))
    refused = wsm("inspect", old, "--rank", 0)
    assert refused.code == 1
    assert "wsm convert" in refused.err

    converted = wsm("convert", old, new)
    assert (converted.code, converted.err) == (0, "")
    assert converted.out == (
        f"{old / 'model_state.tp0.0.pdparams'} -> {new / 'model_state.tp0.0.pdparams'}\n"
    )
    assert "would load 1 tensor," in wsm("inspect", new, "--rank", 0).out

    again = wsm("convert", old, new)
    assert again.code == 1
    assert "exists" in again.err
