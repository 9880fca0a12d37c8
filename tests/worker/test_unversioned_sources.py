"""Sources that name no version, as FastDeploy writes them: loaded unverified under a label, or refused."""

from __future__ import annotations

import pytest

from wsm.config import ConfigurationError, config_from_mapping
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.states.vocabulary import WeightState
from wsm.strategies import publish_snapshot, write_version
from wsm.strategies.ipc.source import IpcConfig
from wsm.strategies.snapshot.source import SnapshotConfig

FILE = "model_state.tp0.0.pdparams"
VALUES = {"weight": 256, "bias": 32}


@pytest.fixture
def write(plain, tmp_path):
    """Write the one shard as FastDeploy's trainers do: flat, every byte of it the same."""

    def write(byte, name=FILE):
        shapes = {"weight": (8, 8), "bias": (8,)}
        plain(name, {key: ("F32", shapes[key], bytes([byte]) * VALUES[key]) for key in VALUES})

    return write


def lone_over(make_lone, directory, **options):
    snapshot = SnapshotConfig(str(directory), device_ids=(0,), shared_directory=str(directory / "shared"))
    return make_lone(load=None, snapshot=snapshot, **options)


def held(lone):
    return {bytes(lone.runner.weights.readable(name))[0] for name in lone.runner.weights.held()}


def test_a_flat_snapshot_without_version_yaml_loads_under_the_label_of_its_command(
    make_lone, write, tmp_path
):
    lone = lone_over(make_lone, tmp_path)
    for byte, hot in ((1, False), (2, True), (3, False)):
        write(byte)
        receipt = lone.update(None, hot=hot)
        label = f"unnamed-{lone.segment.run_id}.{receipt.epoch}.{receipt.sequence}"
        assert (receipt.version, lone.worker.version, held(lone)) == (label, label, {byte})
        assert (receipt.verified, receipt.loaded) == (False, True)
        assert "unverified: its source names no version" in receipt.sentence()
        assert f"serves version {label}, unverified" in lone.controller.status().sentence()
    assert lone.update(None).previous_version == label  # nothing says that it is the same
    write_version(tmp_path, "global_step_1200")
    assert lone.update(None).version == "global_step_1200"


@pytest.mark.parametrize("place", ["model_state.tp0.0.part1.pdparams", "shared/model_state.tp0.0.pdparams"])
def test_each_place_of_fastdeploys_counts(make_lone, write, tmp_path, place):
    lone = lone_over(make_lone, tmp_path)
    write(5, place)
    assert (lone.update(None).verified, held(lone)) == (False, {5})


def test_by_configuration_it_is_refused_and_another_choice_is_no_configuration(make_lone, write, tmp_path):
    lone = lone_over(make_lone, tmp_path, unversioned="refuse")
    write(1)
    with pytest.raises(CommandRefusedError, match="unversioned: refuse") as caught:
        lone.update(None)
    assert caught.value.context["error"] == "unversioned-weights"
    with pytest.raises(ConfigurationError, match="it must be one of load, refuse"):
        config_from_mapping({"name": "g", "ranks": 1, "unversioned": "yes"})


@pytest.mark.parametrize("hot", [False, True])
def test_files_that_change_before_the_first_byte_fail_the_load_and_nothing_is_touched(
    make_lone, write, tmp_path, monkeypatch, hot
):
    lone = lone_over(make_lone, tmp_path)
    write(1)
    before = lone.update(None).version
    weights, surface = lone.runner.weights, lone.runner.requests
    what = (weights, "stage") if hot else (surface, "stop_admitting")
    real = getattr(*what)

    def overwritten(*arguments):
        write(2)
        return real(*arguments)

    monkeypatch.setattr(*what, overwritten)
    with pytest.raises(
        RankFailedError, match=r"changed while it was loaded: .*pdparams is gone, an"
    ) as caught:
        lone.update(None, hot=hot)
    assert caught.value.context["error"] == "source-changed"
    assert (lone.worker.version, held(lone)) == (before, {1})
    assert lone.controller.status().serving


@pytest.mark.parametrize("change", ["overwritten", "named", "another part"])
def test_files_that_change_before_prepared_fail_the_load(make_lone, write, tmp_path, monkeypatch, change):
    lone = lone_over(make_lone, tmp_path)
    write(1)
    real = lone.runner.kv_cache.rebuild

    def rebuild():
        write(2)
        return real()

    if change == "overwritten":
        monkeypatch.setattr(lone.runner.kv_cache, "rebuild", rebuild)
    else:
        act = lone.worker._loop._accept

        def accept(view):
            if change == "named":
                write_version(tmp_path, 7)
            else:
                write(3, "model_state.tp0.0.part1.pdparams")
            act(view)

        lone.worker._loop._work[next(todo for todo in lone.worker._loop._work if todo.name == "ACCEPT")] = (
            accept
        )
    with pytest.raises(RankFailedError, match="changed while it was loaded") as caught:
        lone.update(None)
    assert caught.value.context["error"] == "source-changed"
    lone.worker.poll()
    assert lone.worker.weights is WeightState.CLEARED


def test_what_is_published_later_is_newer_than_what_names_no_version(make_lone, write, tmp_path):
    lone = lone_over(make_lone, tmp_path)
    write(1)
    lone.update(None)
    specs = lone.runner.weights.specs()
    shard = {name: (specs[name], b"\x09" * VALUES[name]) for name in VALUES}
    publish_snapshot(tmp_path, "step_9", {0: shard}, durable=False)
    (tmp_path / "version.yaml").unlink()
    assert (lone.update(None).version, held(lone)) == ("step_9", {9})


@pytest.mark.paddle
def test_fastdeploys_own_metas_load_under_the_label_of_their_command(make_lone, tmp_path):
    import numpy as np  # noqa: PLC0415 - with paddle only
    import paddle  # noqa: PLC0415 - with paddle only

    values = {"weight": np.full((8, 8), 3, np.float32), "bias": np.full((8,), 4, np.float32)}
    tensors = {name: paddle.to_tensor(value) for name, value in values.items()}
    holders = {name: tensor.value().get_tensor() for name, tensor in tensors.items()}
    metas = {name: holder._share_filename(False) for name, holder in holders.items()}
    paddle.save(metas, str(tmp_path / "ipc_metas_0"))
    ipc = IpcConfig(str(tmp_path), device_ids=(0,), allow_pickle=True)
    lone = make_lone(load=None, strategy="ipc", ipc=ipc)
    receipt = lone.update(None)
    assert receipt.version == f"unnamed-{lone.segment.run_id}.1.{receipt.sequence}"
    assert receipt.verified is False
    for name, value in values.items():
        assert bytes(lone.runner.weights.readable(name)) == value.tobytes()
