"""A group of two ranks, tensor- and expert-parallel, loads what a trainer wrote: sliced, and fed whole."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "strategies" / "shared"))

from written_checkpoint import overwrite_in_place, write_checkpoint

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.sharding import full_specs, initial_state
from examples.rollout.supervisor import RolloutSupervisor
from tests.leftovers import group_name
from wsm.cli.adopting import settings_of_group
from wsm.controller.errors import RankFailedError
from wsm.strategies import AdoptWay, Relabel, adopt

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

MODEL = {
    "vocabulary": 11,
    "width": 16,
    "heads": 4,
    "hidden": 32,
    "context": 64,
    "experts": 4,
    "draft_layers": 1,
}


def written(config: RolloutConfig, directory: Path, seed: int) -> Path:
    """A checkpoint of the group's model, as its trainer writes it."""
    shape = config.engine.shape
    full = initial_state(shape, seed)
    state = {
        name: (spec, np.ascontiguousarray(full[name]).tobytes()) for name, spec in full_specs(shape).items()
    }
    return write_checkpoint(directory, state, files=3)


def said(supervisor: RolloutSupervisor) -> list[Any]:
    with supervisor.client() as client:
        return [answer.tokens for answer in client.generate([[1, 2, 3], [4]], 8, temperature=1.0, seed=5)]


@pytest.mark.slow
def test_an_adopted_directory_serves_outlives_its_trainer_and_restores_a_lost_rank(tmp_path: Path) -> None:
    group = {"name": group_name("adopted"), "snapshot": {"directory": str(tmp_path / "models")}}
    config = rollout_config_from_mapping({"group": group, "model": MODEL})
    settings = settings_of_group(config.group, roots=[tmp_path], relabel=Relabel.MARK)
    with RolloutSupervisor(config) as supervisor:
        first = written(config, tmp_path / "weight_v000007", 7)
        adoption = adopt(first, settings)
        shutil.rmtree(first)
        receipt = supervisor.controller.update(adoption.label, hot=True)
        assert (receipt.version, receipt.verified) == ("7", True)
        spoken = said(supervisor)
        os.kill(supervisor.pids()[1], signal.SIGKILL)
        until = time.monotonic() + 60
        while supervisor.controller.status().epoch < 2 and time.monotonic() < until:
            time.sleep(0.05)
        while not supervisor.controller.status().serving and time.monotonic() < until:
            time.sleep(0.05)
        assert said(supervisor) == spoken
        # Bytes that a trainer puts into a linked file are found, and the version that serves goes on.
        second = written(config, tmp_path / "weight_v000008", 8)
        linked = adopt(second, settings)
        assert adoption.way is linked.way is AdoptWay.LINK
        overwrite_in_place(next(second.glob("*.safetensors")))
        with pytest.raises(RankFailedError) as caught:
            supervisor.controller.update(linked.label, hot=True)
        assert caught.value.error == "digest-mismatch"
        assert said(supervisor) == spoken
        assert supervisor.controller.status().version == "7"
        other = rollout_config_from_mapping({"group": group, "model": {**MODEL, "experts": 8}})
        of_another = adopt(written(other, tmp_path / "step_9", 9), settings)
        with pytest.raises(RankFailedError, match="unknown"):
            supervisor.controller.update(of_another.label, hot=True)
        assert said(supervisor) == spoken


@pytest.mark.slow
def test_models_loaders_are_fed_an_adopted_directory_whole(tmp_path: Path) -> None:
    models = tmp_path / "models"
    rsync = {"transport": "files", "directory": str(models)}
    group = {"name": group_name("fed"), "strategy": "gdr", "rsync": rsync}
    config = rollout_config_from_mapping({"group": group, "model": MODEL})
    settings = settings_of_group(config.group, roots=[tmp_path])
    assert settings.ranks is None
    first = written(config, tmp_path / "step_1", 1)
    adopt(first, settings)
    shutil.rmtree(first)
    with RolloutSupervisor(config) as supervisor:
        before = said(supervisor)
        second = written(config, tmp_path / "step_2", 2)
        receipt = supervisor.controller.update(adopt(second, settings).label, hot=True)
        assert (receipt.version, receipt.verified) == ("2", True)
        assert said(supervisor) != before
        third = written(config, tmp_path / "step_3", 1)
        receipt = supervisor.controller.update(adopt(third, settings).label)
        assert said(supervisor) == before
        # What serves, and what may have to be loaded again, is not retired.
        for step in (4, 5, 6):
            adopt(written(config, tmp_path / f"step_{step}", step), settings)
        assert (models / "versions" / "3").exists()
        assert not (models / "versions" / "2").exists()
