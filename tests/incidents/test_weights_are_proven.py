"""Incidents in which weights were served that were not loaded, not whole, or not the ones asked for."""

from __future__ import annotations

import numpy as np
import pytest
from lone_rank import load
from snapshots_of_incidents import OTHER, SPEC, is_untouched, publish, served_target, shard, source

from tests.raising import raising
from wsm import Outcome
from wsm.controller.errors import RankFailedError
from wsm.strategies import (
    DeltaSource,
    MemoryTarget,
    SnapshotPublisher,
    TensorSpec,
    errors,
    inspect,
    publish_delta,
)
from wsm.strategies import load as load_snapshot
from wsm.strategies.delta.source import DeltaBaseError
from wsm.strategies.registry import STRATEGIES, strategy_for
from wsm.worker.errors import NotServingError

# -- coverage and shape -----------------------------------------------------------------------------

EXTRA = TensorSpec("unknown", "F32", (4,))


@pytest.mark.parametrize(
    ("specs", "error"),
    [
        ((SPEC,), errors.not_covered),
        ((SPEC, OTHER, EXTRA), errors.not_covered),
        ((TensorSpec("weight", "BF16", (64,)), OTHER), "dtype-mismatch"),
        ((TensorSpec("weight", "F32", (8, 8)), OTHER), "shape-mismatch"),
    ],
    ids=["one missing", "one unknown", "another dtype", "another shape"],
)
def test_fastdeploy_6052_and_c2_15_invalid_weights_are_an_error_before_the_first_byte(tmp_path, specs, error):
    publish(tmp_path, {0: shard(3, *specs)})
    target = served_target()
    with raising(error):
        load_snapshot(source(tmp_path), target, version=1)
    assert is_untouched(target)


def test_tokenspeed_1373_an_empty_list_of_tensors_is_no_success(tmp_path):
    file = tmp_path / "model_state.tp0.0.pdparams"
    file.write_bytes((2).to_bytes(8, "little") + b"{}")
    with raising(errors.empty_snapshot):
        load_snapshot(source(tmp_path), served_target())


def test_nemo_rl_3274_a_delta_is_never_applied_to_what_half_of_it_has_left(tmp_path):
    base, new = shard(3), shard(5)
    publish(tmp_path, {0: base})
    publish_delta(tmp_path, 2, 1, {0: new}, crossover=2.0, durable=False)
    target = MemoryTarget((SPEC, OTHER))
    refusing = DeltaSource(tmp_path, 0, device_id=0, fallback="refuse")
    load_snapshot(refusing, target, name="delta", version=1)
    begun = []
    with raising(errors.LoadCancelledError) as caught:
        load_snapshot(
            refusing,
            target,
            name="delta",
            version=2,
            taint=lambda: begun.append(True),
            cancelled=lambda: bool(begun) and bytes(target.readable(SPEC.name)) == new[SPEC.name][1],
        )
    assert caught.value.touched
    left = {spec.name: bytes(target.readable(spec.name)) for spec in (SPEC, OTHER)}
    assert left == {SPEC.name: new[SPEC.name][1], OTHER.name: base[OTHER.name][1]}
    with pytest.raises(DeltaBaseError):
        load_snapshot(refusing, target, name="delta", version=2)
    assert left == {spec.name: bytes(target.readable(spec.name)) for spec in (SPEC, OTHER)}
    load_snapshot(DeltaSource(tmp_path, 0, device_id=0), target, name="delta", version=2)
    assert {spec.name: bytes(target.readable(spec.name)) for spec in (SPEC, OTHER)} == {
        name: data for name, (_, data) in new.items()
    }


# -- one registry -----------------------------------------------------------------------------------


def test_fastdeploy_7472_and_c2_7_a_strategy_is_known_to_boot_update_and_wake_up_or_to_none(make_lone):
    assert {"ipc_snapshot", "ipc", "ipc_async", "delta", "rsync"} <= set(STRATEGIES)
    for unknown in ("rdma", "Ipc_snapshot"):
        with raising("unknown-strategy", match="ipc_snapshot"):
            strategy_for(unknown, None)
    commands = []

    def loaded(context, target):
        commands.append(context.version)
        return load(context, target)

    lone = make_lone(load=loaded)
    lone.update(1)  # boot
    lone.update(2)  # in place
    lone.clear()
    lone.update(3)  # wake-up
    assert commands == ["1", "2", "3"]


# -- verification and receipt -----------------------------------------------------------------------


def load_all_but_one(context, target) -> dict:
    """Report what the source has, and leave one tensor as it was: it is initialised all the same."""
    facts = load(context, target)
    target.writable("bias")[:] = bytes(32)
    return facts


def load_nothing(context, target) -> dict:
    """Allocate, and report what version 1 would have."""
    whole = MemoryTarget(target.specs().values())
    facts = load(context, whole)
    for name in target.specs():
        target.writable(name)
    return facts


@pytest.mark.parametrize(
    "faulty",
    [
        pytest.param(load_all_but_one, id="fastdeploy_c2_10 initialised is not loaded"),
        pytest.param(load_nothing, id="vllm_54235 woken but not loaded"),
        pytest.param(lambda c, t: {**load(c, t), "digest": ""}, id="verl_6666 nothing to check against"),
        pytest.param(lambda c, t: {**load(c, t), "version": 9}, id="another version than asked for"),
    ],
)
def test_fastdeploy_c2_10_vllm_54235_and_verl_6666_what_is_not_proven_is_never_served(make_lone, faulty):
    lone = make_lone(load=faulty)
    with pytest.raises(RankFailedError) as caught:
        lone.update(1)
    assert caught.value.action in ("load_weights", "verify_loaded", "declare_prepared")
    assert not lone.controller.status().serving
    with pytest.raises(NotServingError), lone.worker.step():
        pass


def test_openrlhf_660_and_peers_4_8_1_a_receipt_tells_an_update_from_one_that_did_nothing(make_lone):
    lone = make_lone()
    first = lone.update(1)
    again = lone.update(1)
    forced = lone.update(1, force=True)
    assert [(r.outcome, r.loaded) for r in (first, again, forced)] == [
        (Outcome.UPDATED, True),
        (Outcome.ALREADY_SERVED, False),
        (Outcome.UPDATED, True),
    ]
    assert "nothing was loaded" in again.sentence()
    assert first.ranks[0].digest == forced.ranks[0].digest != lone.update(2).ranks[0].digest


def test_marin_8955_and_torchtitan_3234_a_receipt_says_what_took_how_long(make_lone):
    def load_for_three_seconds(context, target) -> dict:
        lone.group.clock.advance(3)
        return load(context, target)

    lone = make_lone(load=load_for_three_seconds)
    lone.update(1)
    [report] = lone.update(2).ranks
    names = [action.name for action in report.actions]
    assert names[names.index("load_weights") + 1] == "verify_loaded"
    assert {action.name for action in report.actions if action.seconds} == {"load_weights"}
    assert report.pause_s == 3


def test_fastdeploy_c2_20_an_update_without_a_number_loads_the_newest_and_says_which(make_group):
    group = make_group()
    with group.boot(1) as controller:
        group.publish(2)
        receipt = controller.update()
        assert (receipt.version, receipt.previous_version, receipt.loaded) == ("2", "1", True)
        assert {r.rank: r.digest for r in receipt.ranks} == group.published[2].digests


def test_sglang_31621_looking_at_a_version_changes_nothing(tmp_path):
    publish(tmp_path, {0: shard(3)})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    target = served_target()
    inspect(source(tmp_path), 1, target=target)
    assert is_untouched(target)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# -- publishing -------------------------------------------------------------------------------------


def test_marin_1829_a_version_that_was_published_cannot_change_its_content_unnoticed(tmp_path):
    publish(tmp_path, {0: shard(3)})
    with raising(errors.VersionExistsError):
        publish(tmp_path, {0: shard(4)})
    target = MemoryTarget((SPEC, OTHER))
    load_snapshot(source(tmp_path), target, version=1)
    assert np.frombuffer(target.readable("weight"), np.uint8).tolist() == [3] * SPEC.nbytes


def test_prime_rl_1492_a_half_written_version_is_invisible(tmp_path):
    publish(tmp_path, {0: shard(3)})
    with SnapshotPublisher(tmp_path, world_size=2, durable=False).version(2) as staged:
        digest = staged.put(0, shard(4))
        with raising(errors.SnapshotNotFoundError):
            load_snapshot(source(tmp_path), served_target(), version=2)
        assert load_snapshot(source(tmp_path), served_target()).version == "1"
        with raising(errors.incomplete_publication):
            staged.seal({0: digest})
    assert load_snapshot(source(tmp_path), served_target()).version == "1"
