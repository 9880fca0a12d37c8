from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies" / "shared"))

from small_state import make_state
from written_checkpoint import write_checkpoint

from tests.leftovers import group_name
from wsm import WsmConfig
from wsm.group_segment import own_group
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.strategies.snapshot.store import content_of


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "exchange" / "weight_v000012", make_state())


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "wsm.yaml"
    file.write_text(f"name: policy\nranks: 1\nsnapshot: {{directory: {tmp_path / 'models'}}}\n")
    return file


def test_a_directory_becomes_a_version_that_can_be_verified(
    wsm: Run, written: Path, config: Path, tmp_path: Path
) -> None:
    ended = wsm("adopt", written, "--config", config)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("version 12: linked (2 files, ")
    assert "is written into version 12" in ended.out
    assert wsm("verify", tmp_path / "models", "--version", 12).code == 0
    again = json.loads(wsm("adopt", written, "--config", config, "--adopt", "copy", "--json").out)
    content = content_of(tmp_path / "models", "12")
    assert content is not None
    assert again["group_digest"] == content.digest
    assert f"group digest {content.digest}" in ended.out
    assert f"group digest {content.digest}" in wsm("digest", tmp_path / "models", "--version", 12).out
    assert (again["label"], again["already"], again["reused"], again["way"]) == ("12", True, False, "copy")
    copied = wsm("adopt", written, "--config", config, "--adopt", "copy", "--version", "best")
    assert copied.out.startswith("version best: copied")


def test_names_and_placements_come_from_files_of_the_users(
    wsm: Run, written: Path, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_engine_of_adopt.py").write_text(
        "from wsm.strategies.snapshot.placement import Replicated\n"
        "def placed(specs):\n    assert 'tokens' in specs\n    return dict.fromkeys(specs, Replicated())\n"
    )
    (tmp_path / "names.json").write_text('{"embed.weight": "tokens"}')
    config.write_text(config.read_text().replace("ranks: 1", "ranks: 4"))
    (tmp_path / "trained.json").write_text('{"tokens": "embed.weight", "norm": ["norm.a", "norm.b"]}')
    placed = ("--placements", "my_engine_of_adopt:placed")
    hook = (*placed, "--names", tmp_path / "names.json")
    for named in (hook, (*placed, "--names-to-training", tmp_path / "trained.json")):
        ended = wsm("adopt", written, "--config", config, *named)
        assert (ended.code, ended.err) == (0, "")
        assert "copied" in ended.out or "already" in ended.out
    said = config.read_text()
    for option, file in (("training_names", "names.json"), ("names_to_training", "trained.json")):
        config.write_text(f"{said}{option}: {tmp_path / file}\n")
        assert wsm("adopt", written, "--config", config, *placed).code == 0
    config.write_text(said)
    assert "says how its tensors lie on 4 ranks" in wsm("adopt", written, "--config", config).err
    for wrong in ("my_engine_of_adopt:absent", "no_such_module:placed"):
        assert wsm("adopt", written, "--config", config, "--placements", wrong).code == 2
    (tmp_path / "names.json").write_text("[]")
    assert "Expected `object`" in wsm("adopt", written, "--config", config, *hook).err


@pytest.mark.processes
def test_a_running_group_has_left_the_configuration_by_which_checkpoints_are_adopted(
    wsm: Run, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine_of_a_group.py").write_text(
        "from wsm.strategies.snapshot.placement import Replicated\n"
        "def placed(specs):\n    return dict.fromkeys(specs, Replicated())\n"
    )
    name = group_name("left")
    config = WsmConfig(
        name, ranks=2, snapshot=SnapshotConfig(directory="models"), placements="engine_of_a_group:placed"
    )
    segment = own_group(config)
    try:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "engine_of_a_group.py").rename(tmp_path / "elsewhere" / "engine_of_a_group.py")
        monkeypatch.chdir(tmp_path / "elsewhere")
        ended = wsm("adopt", written, "--group", name)
        assert (ended.code, ended.err) == (0, "")
        assert wsm("verify", tmp_path / "models", "--version", 12).code == 0
    finally:
        segment.unlink()
        segment.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --group NAME"),
        (("--group", "no-such-group"), "no running group 'no-such-group' has left its configuration here"),
        (("--config", "wsm.yaml", "--group", "other"), "configures group 'policy', not 'other'"),
        (("--config", "ipc.yaml"), "loads no files that could be adopted"),
        (("--config", "wsm.yaml", "--root", "elsewhere"), "only what lies below"),
        (("--config", "wsm.yaml", "--version", "latest"), "reserved"),
    ],
)
def test_what_cannot_be_adopted_says_what_to_do(
    wsm: Run, written: Path, config: Path, options: tuple[str, ...], said: str
) -> None:
    (config.parent / "elsewhere").mkdir()
    Path("ipc.yaml").write_text("name: policy\nranks: 1\nstrategy: ipc\n")
    ended = wsm("adopt", written, *options)
    assert ended.code in (1, 2)
    assert said in " ".join(ended.err.split())
