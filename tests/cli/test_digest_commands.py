from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run
from commanded_group import LivingGroup
from small_model import SPECS, publish

from wsm import Controller, WsmError
from wsm.states.vocabulary import Tag
from wsm.strategies import SharedTensors, TensorSpec, publish_snapshot
from wsm.strategies.snapshot.placement import AxisSegment, Split
from wsm.testing import LocalGroup


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    directory = tmp_path / "snapshots"
    publish(directory, 1)
    publish(directory, 2)
    return directory


def part(directory: Path, version: int, rank: int = 0) -> Path:
    (path,) = (directory / "versions" / str(version)).glob(f"model_state.tp{rank}.{rank}.part0.pdparams")
    return path


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_directory_has_the_digests_that_its_publisher_reported(wsm: Run, snapshots: Path) -> None:
    published = publish(snapshots, 3)
    ended = wsm("digest", snapshots)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines] == [published.digests[0], published.digests[1]]
    assert "version 3 rank 1" in lines[1]
    older = json.loads(wsm("digest", snapshots, "--version", 2, "--rank", 1, "--json").out)
    assert [(entry["rank"], entry["version"]) for entry in older] == [(1, "2")]


def configuration(directory: Path, **options: object) -> Path:
    file = directory / "wsm.yaml"
    file.write_text(json.dumps({"name": "policy", "ranks": 2, **options}))
    return file


def test_a_configuration_stands_for_what_its_strategy_would_load(
    wsm: Run, snapshots: Path, tmp_path: Path
) -> None:
    shards = {rank: {spec.name: (spec, b"\x03" * spec.nbytes) for spec in SPECS} for rank in range(2)}
    with SharedTensors(tmp_path / "metas") as shared:
        shared.publish(3, shards)
        ids = {"directory": str(tmp_path / "metas"), "device_ids": [0, 1]}
        config = configuration(tmp_path, strategy="ipc", ipc=ids)
        verified = wsm("verify", config)
        assert (verified.code, verified.err) == (0, "")
        assert [line.endswith("2 tensors verified") for line in verified.out.splitlines()] == [True, True]
        published = publish(snapshots, 3)
        assert wsm("diff", config, snapshots).code == 0
        (entry,) = json.loads(wsm("digest", config, "--rank", 1, "--json").out)
        assert (entry["rank"], entry["digest"]) == (1, published.digests[1])
        assert wsm("digest", config, "--version", 2).code == 1


def test_a_configuration_whose_versions_only_its_ranks_can_take_is_refused(wsm: Run, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/nobody"
    config = configuration(tmp_path, strategy="ipc_async", ipc_async={"address": address})
    ended = wsm("verify", config)
    assert ended.code == 1
    assert "the strategy ipc_async, whose versions only the ranks can take" in ended.err


def test_a_file_by_itself_has_the_digest_of_its_shard_and_of_each_tensor(wsm: Run, snapshots: Path) -> None:
    ended = wsm("digest", part(snapshots, 1), "--tensors")
    assert ended.code == 0
    assert ended.out.splitlines()[0].split()[0] == publish(snapshots, 1).digests[0]
    assert "    head.weight F32[8, 16]" in ended.out
    content = json.loads(wsm("digest", part(snapshots, 1), "--tensors", "--json").out)
    assert set(content[0]["tensors"]) == {spec.name for spec in SPECS}


def test_equal_content_does_not_differ_however_it_is_kept(wsm: Run, snapshots: Path, tmp_path: Path) -> None:
    shard = {spec.name: (spec, b"\x01" * spec.nbytes) for spec in SPECS}
    publish_snapshot(tmp_path / "cut", 9, {0: shard, 1: shard}, part_bytes=512, durable=False)
    cut = wsm("diff", snapshots / "versions" / "1", tmp_path / "cut" / "versions" / "9")
    assert (cut.code, cut.out, cut.err) == (0, "2 shards, 2 tensors each: the same\n", "")
    with SharedTensors(tmp_path / "metas") as shared:
        shared.publish(4, {0: shard, 1: shard})
        same = wsm("diff", part(snapshots, 1), tmp_path / "metas" / "ipc_metas_0")
        assert (same.code, same.err) == (0, "")
        assert same.out == "1 shard, 2 tensors each: the same\n"


def test_a_difference_names_the_tensors(wsm: Run, snapshots: Path, tmp_path: Path) -> None:
    other = {
        "embed.weight": (SPECS[0], b"\x01" * SPECS[0].nbytes),
        "head.weight": (TensorSpec("head.weight", "F32", (16, 8)), b"\x01" * 512),
        "extra": (TensorSpec("extra", "U8", (1,)), b"x"),
    }
    path = publish_snapshot(tmp_path / "other", 1, {0: other}, durable=False).path
    (file,) = Path(path).glob("*.part0.pdparams")
    ended = wsm("diff", part(snapshots, 1), file)
    assert ended.code == 1
    assert ended.out.splitlines()[1:] == ["  extra: only right", "  head.weight: dtype or shape"]
    assert ended.err == f"error: {part(snapshots, 1)} and {file} differ in 1 of 1 shard\n"
    found = json.loads(wsm("diff", part(snapshots, 1), part(snapshots, 2), "--json").out)
    assert found[0]["tensors"] == {"embed.weight": "bytes", "head.weight": "bytes"}


def test_shards_of_other_ranks_are_not_compared(wsm: Run, snapshots: Path, tmp_path: Path) -> None:
    publish(tmp_path / "four", 1, ranks=4)
    ended = wsm("diff", snapshots, tmp_path / "four", "--version", 1)
    assert ended.code == 1
    assert "--rank" in ended.err
    assert wsm("diff", snapshots, tmp_path / "four", "--version", 1, "--rank", 1).code == 0


def test_a_whole_version_is_verified_and_a_flipped_bit_is_named(wsm: Run, snapshots: Path) -> None:
    ended = wsm("verify", snapshots)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("2 tensors verified") == 2
    flip_last_bit(part(snapshots, 2, rank=1))
    ended = wsm("verify", snapshots)
    assert ended.code == 1
    assert "head.weight: " in ended.out
    assert "1 tensor of " in ended.err
    assert "is corrupt" in ended.err
    assert wsm("verify", snapshots, "--rank", 0).code == 0


def test_a_version_for_another_number_of_ranks_is_verified_in_its_slices(wsm: Run, tmp_path: Path) -> None:
    spec = TensorSpec("w", "U8", (4, 2))
    shards = {rank: {"w": (spec, bytes(range(8)))} for rank in range(2)}
    placements = {"w": Split(0, (AxisSegment(8),))}
    publish_snapshot(tmp_path, 1, shards, placements=placements, durable=False)
    file = tmp_path / "wsm.yaml"
    file.write_text(json.dumps({"name": "g", "ranks": 4, "snapshot": {"directory": str(tmp_path)}}))
    ended = wsm("verify", file)
    assert (ended.code, ended.out.count("1 tensor verified")) == (0, 4)
    flip_last_bit(part(tmp_path, 1, rank=1))
    ended = wsm("verify", file, "--rank", 3)
    assert ended.code == 1
    assert "model_state.tp1.1.part0.pdparams" in ended.out
    assert wsm("verify", file, "--rank", 0).code == 0


def test_a_version_that_lost_its_manifests_is_digested_and_not_called_verified(
    wsm: Run, snapshots: Path
) -> None:
    for manifest in (snapshots / "versions" / "2").glob("*.json"):
        manifest.unlink()
    assert wsm("digest", snapshots).code == 0
    ended = wsm("verify", snapshots)
    assert ended.code == 1
    assert "manifest.json is missing" in ended.err


def test_a_file_that_nobody_promised_anything_about_is_not_called_verified(wsm: Run, snapshots: Path) -> None:
    ended = wsm("verify", part(snapshots, 1))
    assert ended.code == 1
    assert "no manifest promises" in ended.err


@pytest.mark.parametrize("command", ["digest", "verify"])
def test_what_is_neither_a_path_nor_a_group_is_wrong_usage(wsm: Run, tmp_path: Path, command: str) -> None:
    ended = wsm(command, "nosuch")
    assert (ended.code, ended.out) == (2, "")
    assert "nosuch" in ended.err
    ended = wsm(command, tmp_path / "gone")
    assert ended.code == 2
    assert f"neither a file nor a directory '{tmp_path}/gone'" in ended.err


def test_an_empty_directory_is_a_failure_that_says_where_it_looked(wsm: Run, tmp_path: Path) -> None:
    ended = wsm("digest", tmp_path)
    assert ended.code == 1
    assert str(tmp_path) in ended.err


def test_a_group_is_compared_with_what_is_published(wsm: Run, local: LocalGroup, tmp_path: Path) -> None:
    refused = wsm("digest", "tested")
    assert (refused.code, "wsm status tested" in refused.err) == (1, True)
    local.update(1)
    assert wsm("verify", "tested").code == 0
    published = ("diff", "tested", tmp_path / "snapshots", "--version")
    same = wsm(*published, 1)
    assert (same.code, same.err, same.out) == (0, "", "2 shards: the same\n")
    other = wsm(*published, 2)
    assert other.code == 1
    assert "the digests of the whole shards differ" in other.out
    journals = ("--journals", tmp_path / "journals")
    named = wsm(*published, 2, *journals)
    assert named.code == 1
    assert all(f"  {spec.name}: bytes" in named.out for spec in SPECS)
    assert wsm(*published, 1, *journals).code == 0
    listed = json.loads(wsm("digest", "tested", *journals, "--tensors", "--json").out)
    assert [set(entry["tensors"]) for entry in listed] == [{spec.name for spec in SPECS}] * 2
    local.clear()
    assert wsm("digest", "tested").code == 1


@pytest.mark.processes
def test_a_group_that_serves_can_be_asked_for_its_digests_whatever_is_staged_or_fails_beside(
    wsm: Run, group: LivingGroup
) -> None:
    def held() -> list[tuple[int, str]]:
        assert wsm("verify", group.name).code == 0
        return [
            (entry["version"], entry["digest"])
            for entry in json.loads(wsm("digest", group.name, "--json").out)
        ]

    with Controller(group.name) as controller:
        controller.update(1)
        served = held()
        assert [version for version, _ in served] == ["1", "1"]
        flip_last_bit(part(group.snapshots, 2, rank=1))
        for version in (2, None):
            with pytest.raises(WsmError):
                controller.update(version, hot=True)
            assert held() == served
            same = controller.update(1)  # which finds it served already, and says by what
            assert [report.digest for report in same.ranks] == [digest for _, digest in served]
        flip_last_bit(part(group.snapshots, 2, rank=1))
        prepared = controller.prepare(2)
        group.stop(1)
        assert held() == served
        group.resume(1)
        prepared.commit()
        assert held() != served
        served = held()
        controller.clear(tags=[Tag.KV_CACHE])
        assert held() == served
        controller.update(tags=[Tag.KV_CACHE])
        assert held() == served
