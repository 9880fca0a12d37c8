from __future__ import annotations

import pytest

from examples.rollout import errors
from examples.rollout.config import load_rollout_config, rollout_config_from_mapping
from tests.raising import raising
from wsm.actions.surfaces import GroupKind
from wsm.shared_directory import private_directory

FULL = """
group:
  name: from-file
  ranks: 2
  snapshot: {directory: /data/snapshots}
  engine_words: {suffixes: [8123]}
model: {context: 64, experts: 4}
engine: {max_batch: 16, block_size: 8, routing_replay: true}
load: {concurrency: 4, temperature: 0.5}
seed: 7
"""


def test_a_file_with_every_section_is_read(tmp_path):
    path = tmp_path / "rollout.yaml"
    path.write_text(FULL)
    config = load_rollout_config(path)
    assert config.group.name == "from-file"
    assert config.group.snapshot.directory == "/data/snapshots"
    assert config.engine.shape.experts == 4
    assert config.engine.limits.max_batch == 16
    assert config.engine.block_size == 8
    assert config.load.temperature == 0.5
    assert config.kinds == (GroupKind.TP, GroupKind.EP)


def test_a_name_is_all_that_is_needed():
    config = load_rollout_config(None, name="bare", ranks=4)
    assert (config.group.name, config.group.ranks, config.load) == ("bare", 4, None)
    assert config.group.snapshot.directory == str(private_directory() / "wsm.bare.run" / "snapshots")
    assert config.kinds == (GroupKind.TP,)


def test_the_command_line_overrides_the_file(tmp_path):
    path = tmp_path / "rollout.yaml"
    path.write_text(FULL)
    assert load_rollout_config(path, name="other", ranks=1).group.name == "other"


def test_a_configuration_reaches_the_ranks_unchanged(tmp_path):
    path = tmp_path / "rollout.yaml"
    path.write_text(FULL)
    config = load_rollout_config(path)
    again = rollout_config_from_mapping(config.as_mapping())
    assert again.as_mapping() == config.as_mapping()
    assert again.group.group_digest() == config.group.group_digest()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"grup": {}}, "grup"),
        ({"engine": {"kv_blcks": 3}}, "kv_blcks"),
        ({"engine": {"kv_blocks": "many"}}, "kv_blocks"),
        ({"engine": {"kv_blocks": True}}, "kv_blocks"),
        ({"engine": {"max_batch": 0}}, "max_batch"),
        ({"engine": {"capture_graphs": 1}}, "capture_graphs"),
        ({"engine": {"shape": {}}}, "shape"),
        ({"model": {"layers": 0}}, "layers"),
        ({"model": {"draft_layers": -1}}, "draft_layers"),
        ({"model": {"width": "64"}}, "width"),
        ({"model": {"depth": 3}}, "depth"),
        ({"engine": {"max_batch": 64, "max_step_tokens": 32}}, "engine.max_step_tokens"),
        ({"engine": {"kv_blocks": 8}}, "engine.kv_blocks"),
        ({"load": {"max_tokens": 100}}, "load"),
        ({"load": {"concurrency": 5000}}, "load.concurrency"),
        ({"load": []}, "load"),
        ({"seed": -1}, "seed"),
        ({"group": {"name": "x", "follow": False}}, "group.follow"),
        ([], "file"),
    ],
)
def test_what_cannot_be_is_refused_by_name(content, named):
    with raising(errors.bad_rollout_config) as caught:
        rollout_config_from_mapping(content, name=None if "group" in content else "x")
    assert caught.value.field == named


def test_a_strategy_that_there_is_not_is_refused_before_a_process_is_started():
    with raising("unknown-strategy", match="'teleport'; use one of"):
        rollout_config_from_mapping({"group": {"name": "x", "strategy": "teleport"}})


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with raising(errors.bad_rollout_config, match=r"missing\.yaml: file is unreadable"):
        load_rollout_config(tmp_path / "missing.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with raising(errors.bad_rollout_config, match=r"broken\.yaml: file is unreadable"):
        load_rollout_config(tmp_path / "broken.yaml")
