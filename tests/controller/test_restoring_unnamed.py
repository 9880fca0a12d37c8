"""What names no version is restored under its label if it is what each rank had; else all stays CLEARED."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wsm.signals.segment import SegmentImage
from wsm.status import explain, read_facts

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from kept_group import KeptGroup, kept_group
from living_group import eventually, shard_of


@pytest.fixture
def unnamed(tmp_path, plain):
    """A kept group of two over a flat directory without version.yaml; `write(rank, seed)` overwrites."""

    def write(rank: int, seed: str) -> None:
        shard = shard_of(1, rank, seed)
        state = {name: (spec.dtype, spec.shape, data) for name, (spec, data) in shard.items()}
        plain(f"model_state.tp{rank}.{rank}.pdparams", state, directory=tmp_path / "snapshots")

    with kept_group(tmp_path, boots=False) as kept:
        for rank in range(2):
            write(rank, "first")
            kept.group.launch(rank)
        for rank in range(2):
            kept.group.programs[rank].says("ready")
        kept.keep()
        kept.controller = kept.group.controller()
        yield kept, write


def explained(kept: KeptGroup) -> str:
    return " ".join(explain(read_facts(kept.segment.name, SegmentImage.of(kept.segment))).text().split())


@pytest.mark.slow
def test_it_keeps_its_label_and_comes_back_only_as_what_every_rank_had(unnamed):
    kept, write = unnamed
    label = kept.controller.update(None, deadline_s=30).version
    assert label == f"unnamed-{kept.segment.run_id}.1.1"
    kept.kill(1)
    kept.until_told(f"serves version {label} again")
    kept.until_whole()
    assert f"serves version {label}, unverified" in explained(kept)

    write(0, "second")  # the rank that lives has other files now; those of the lost one are what they were
    kept.kill(1)
    told = kept.until_told("cannot be restored and stays CLEARED until it is updated")
    assert f"version {label} cannot be loaded again on rank 0: its source named no version" in told
    assert "was overwritten: digest" in told
    eventually(lambda: kept.controller.status().over, "the restore is over")
    status = kept.controller.status()
    assert (status.state, status.serving, status.version) == ("CLEARED", False, label)
    assert f"the restore of version {label} failed on rank 0" in status.because
    assert "since its source was overwritten" in status.because
    assert not any("attempt" in line for line in kept.told), kept.told  # it would fail again
    advice = f"'wsm update {kept.segment.name}' loads what its source holds now"
    assert any(advice in line for line in status.advice), status.advice
    assert advice in explained(kept)

    write(1, "second")
    after = kept.controller.update(None, deadline_s=30)
    assert after.version == f"unnamed-{kept.segment.run_id}.{after.epoch}.{after.sequence}" != label
    kept.kill(0)
    kept.until_told(f"serves version {after.version} again")
    kept.until_whole()


def test_a_source_that_names_a_version_by_now_was_overwritten(unnamed):
    kept, _ = unnamed
    label = kept.controller.update(None, deadline_s=30).version
    kept.group.publish(2)
    kept.kill(0)
    told = kept.until_told("cannot be restored and stays CLEARED until it is updated")
    assert f"version {label} cannot be loaded again" in told
    assert "it says now that it is version 2" in told
    assert kept.controller.update(None, deadline_s=30).version == "2"
