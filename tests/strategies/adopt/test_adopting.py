"""A trainer's directory becomes a version: linked or copied, digested, and checked again by every load."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from small_state import State, contents, make_state
from written_checkpoint import overwrite_in_place, write_checkpoint, write_file

from tests.raising import raising
from wsm.errors import WsmError
from wsm.strategies import (
    Adoption,
    AdoptSettings,
    AdoptWay,
    MemoryTarget,
    Relabel,
    SnapshotSource,
    TensorSpec,
    TrainingNames,
    adopt,
    load,
    publish_snapshot,
    read_version,
)
from wsm.strategies import errors as strategies_errors
from wsm.strategies.adopt import errors
from wsm.strategies.adopt.checkpoint import CheckpointPart
from wsm.strategies.adopt.record import RECORD_FILE, AdoptionRecord, stands_as_adopted
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.snapshot.errors import PlacementError
from wsm.strategies.snapshot.placement import Placement, Replicated, split


def placed(specs: Mapping[str, TensorSpec]) -> Mapping[str, Placement]:
    """A hook: rows of the embedding are split, the rest is everywhere."""
    return {
        name: split(spec.shape, 0) if name == "embed.weight" else Replicated() for name, spec in specs.items()
    }


@pytest.fixture
def exchange(tmp_path: Path) -> Path:
    return tmp_path / "exchange"


@pytest.fixture
def settings(tmp_path: Path, exchange: Path) -> AdoptSettings:
    return AdoptSettings(tmp_path / "models", [exchange], ranks=2, placements=placed, durable=False)


def held(settings: AdoptSettings, label: str, *, ranks: int = 2) -> State:
    """What two ranks load of a version, the split tensor put together again."""
    whole: State = {}
    for rank in range(ranks):
        specs = [spec for spec, _ in make_state().values()]
        cut = [
            replace(spec, shape=(16 // ranks, 8)) if spec.name == "embed.weight" else spec for spec in specs
        ]
        target = MemoryTarget(cut)
        source = SnapshotSource(
            settings.into, rank, device_id=0, world_size=ranks, shared_directory=None, verify="required"
        )
        report = load(source, target, version=label)
        assert (report.verified, report.version) == (len(specs), label)
        for spec in cut:
            before = whole[spec.name][1] if rank and spec.name == "embed.weight" else b""
            whole[spec.name] = (spec, before + contents(target)[spec.name])
    return whole


def bytes_in(state: State) -> dict[str, bytes]:
    return {name: data for name, (_, data) in state.items()}


@pytest.mark.parametrize("way", [AdoptWay.LINK, AdoptWay.COPY])
@pytest.mark.parametrize("index", [True, False])
def test_a_directory_outlives_its_trainer_and_any_number_of_ranks_loads_it_verified(
    settings: AdoptSettings, exchange: Path, way: AdoptWay, index: bool
) -> None:
    written = write_checkpoint(exchange / "weight_v000012", make_state(), index=index)
    seen = sorted(written.iterdir())
    adoption = adopt(written, replace(settings, way=way))
    assert sorted(written.iterdir()) == seen
    (version,) = Path(settings.into).glob("versions/12")
    parts = sorted(version.glob("*.part*"))
    files = sorted(written.glob("*.safetensors"))
    assert [part.samefile(file) for part, file in zip(parts, files, strict=True)] == [
        way is AdoptWay.LINK
    ] * 2
    shutil.rmtree(written)
    assert (adoption.label, adoption.way, adoption.already, adoption.files) == ("12", way, False, 2)
    assert read_version(settings.into) == "12"
    for ranks in (1, 2):
        assert bytes_in(held(settings, "12", ranks=ranks)) == bytes_in(make_state())
    assert {part.stat().st_nlink for part in parts} == {1}


def test_the_same_tensors_under_the_same_label_are_there_already_whatever_lies_beside_them(
    settings: AdoptSettings, exchange: Path
) -> None:
    first = adopt(write_checkpoint(exchange / "a" / "step_7", make_state()), settings)
    again = write_checkpoint(exchange / "b" / "step_7", make_state(), files=3, index=False)
    for marker in ("STABLE", "NCCL_READY", "tokenizer.json"):
        (again / marker).write_text(marker)
    before = sorted(Path(settings.into).rglob("*"))
    second = adopt(again, settings)
    assert (second.label, second.already, second.digest) == ("7", True, first.digest)
    assert sorted(Path(settings.into).rglob("*")) == before


def test_other_tensors_under_a_label_get_one_that_says_so_also_once_the_first_are_retired(
    settings: AdoptSettings, exchange: Path
) -> None:
    adoptions: list[Adoption] = []
    for restart in range(2):  # a trainer that is started again begins at 1 again
        for step in (1, 2, 3):
            written = write_checkpoint(exchange / f"step_{step}", make_state(seed=10 * restart + step))
            adoptions.append(adopt(written, settings))
            shutil.rmtree(written)
    labels = [adoption.label for adoption in adoptions]
    digests = [adoption.digest or "" for adoption in adoptions]
    assert labels == ["1", "2", "3", *(f"{step}.reused-{digests[2 + step][:8]}" for step in (1, 2, 3))]
    assert [adoption.reused for adoption in adoptions] == [False] * 3 + [True] * 3
    assert "label reused: 1 was other content" in adoptions[3].sentence()
    assert sorted(path.name for path in Path(settings.into).glob("versions/[0-9]*")) == labels[-2:]
    assert bytes_in(held(settings, labels[-1])) == bytes_in(make_state(seed=13))
    assert AdoptionRecord.of(Path(settings.into)).adopted[-1].asked == "3"
    with raising(errors.label_reused):
        adopt(
            write_checkpoint(exchange / "step_1", make_state(seed=99)),
            replace(settings, relabel=Relabel.REFUSE),
        )


def test_what_was_adopted_is_known_to_stand_until_its_version_or_its_files_are_others(
    settings: AdoptSettings, exchange: Path
) -> None:
    first = adopt(write_checkpoint(exchange / "weight_v000001", make_state(1)), settings)
    assert first.digest is not None
    into = Path(settings.into)
    assert stands_as_adopted(into, "1", first.digest)
    assert not stands_as_adopted(into, "1", "0" * len(first.digest))
    assert not stands_as_adopted(into, "2", first.digest)
    other = adopt(write_checkpoint(exchange / "weight_v000002", make_state(2)), settings)
    assert other.digest is not None
    for file in (into / "versions" / "2").iterdir():
        os.utime(file, ns=(1, 1))  # its trainer wrote into it
    assert not stands_as_adopted(into, "2", other.digest)
    shutil.rmtree(into / "versions" / "1")  # it was retired
    assert not stands_as_adopted(into, "1", first.digest)


def test_a_label_that_a_publisher_took_is_not_taken_from_it(settings: AdoptSettings, exchange: Path) -> None:
    publish_snapshot(settings.into, 1, {0: make_state(0), 1: make_state(1)}, durable=False)
    adoption = adopt(write_checkpoint(exchange / "step_1", make_state()), settings)
    assert adoption.reused
    assert (Path(settings.into) / "versions" / "1").exists()
    for step in (2, 3):
        adopt(write_checkpoint(exchange / f"step_{step}", make_state(seed=step)), settings)
    assert not (Path(settings.into) / "versions" / "1").exists()
    again = adopt(exchange / "step_1", settings)
    assert (again.label, again.reused) == (adoption.label, True)


def test_what_a_trainer_overwrites_in_place_never_passes_for_what_was_adopted(
    settings: AdoptSettings, exchange: Path
) -> None:
    """The promise of links: other bytes are found, by a load or the next adoption, and never served."""
    written = write_checkpoint(exchange / "step_7", make_state())
    adopt(written, settings)
    (file, *_) = sorted(written.glob("*.safetensors"))
    overwrite_in_place(file)
    with pytest.raises(DigestMismatchError):
        held(settings, "7")
    other = adopt(written, settings)
    assert other.reused
    # The first content again: what stands under its label is not that any more, and is replaced.
    shutil.rmtree(written)
    again = adopt(write_checkpoint(written, make_state()), settings)
    assert (again.label, again.already) == ("7", False)
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())
    copy = adopt(written, replace(settings, way=AdoptWay.COPY), version="copied")
    overwrite_in_place(file)
    assert bytes_in(held(settings, copy.label)) == bytes_in(make_state())


def test_names_of_the_trainer_are_exchanged_in_a_copy(settings: AdoptSettings, exchange: Path) -> None:
    state = make_state()
    spec, data = state.pop("embed.weight")
    trained = {"tokens": (replace(spec, name="tokens"), data), **state}
    names = TrainingNames({"tokens": "embed.weight"})
    adoption = adopt(write_checkpoint(exchange / "step_7", trained), replace(settings, names=names))
    assert adoption.way is AdoptWay.COPY
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())
    with raising(strategies_errors.not_covered, match="1 duplicate: 'embed.weight'"):
        both = {**trained, "embed.weight": (spec, data)}
        adopt(write_checkpoint(exchange / "step_8", both), replace(settings, names=names))


def test_files_that_cannot_be_linked_are_copied(
    settings: AdoptSettings, exchange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert adopt(write_checkpoint(exchange / "step_7", make_state()), settings).way is AdoptWay.COPY
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())


def test_without_taking_in_only_the_label_is_taken_from_the_directory(settings: AdoptSettings) -> None:
    adoption = adopt("/nowhere/global_step_1200", replace(settings, way=AdoptWay.NONE))
    assert (adoption.label, adoption.digest, adoption.already) == ("1200", None, False)
    assert not Path(settings.into).exists()


def unfinished(directory: Path) -> None:
    next(directory.glob("*.safetensors")).unlink()


def truncated(directory: Path) -> None:
    cut_short(next(directory.glob("*.safetensors")))


def not_json(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text("{")


def leads_out(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../step_6/a"}}')


def changes_alone(directory: Path) -> None:
    metadata = {"version": "000007", "base_version": "000006", "delta_encoding": "xor"}
    content = {"metadata": metadata, "weight_map": {}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))


def only_markers(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    (directory / "NCCL_READY").touch()


def twice(directory: Path) -> None:
    (directory / "model.safetensors.index.json").unlink()
    file = next(directory.glob("*.safetensors"))
    shutil.copy(file, directory / "consolidated.safetensors")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (unfinished, errors.incomplete_checkpoint),
        (not_json, errors.incomplete_checkpoint),
        (leads_out, errors.incomplete_checkpoint),
        (only_markers, errors.no_checkpoint),
        (changes_alone, errors.delta_checkpoint),
        (truncated, strategies_errors.bad_file_size),
        (twice, strategies_errors.not_covered),
        (shutil.rmtree, errors.checkpoint_missing),
    ],
)
def test_what_is_no_whole_checkpoint_is_refused_and_nothing_is_written(
    settings: AdoptSettings, exchange: Path, damage: Callable[[Path], None], expected: Callable[..., WsmError]
) -> None:
    written = write_checkpoint(exchange / "step_7", make_state())
    damage(written)
    with raising(expected):
        adopt(written, settings)
    assert not Path(settings.into).exists()


def test_an_index_decides_which_files_count_and_must_tell_the_truth(
    settings: AdoptSettings, exchange: Path
) -> None:
    written = write_checkpoint(exchange / "step_7", make_state())
    write_file(written / "old.safetensors", make_state(seed=9))
    assert adopt(written, settings).left_out == ("old.safetensors",)
    lies = write_checkpoint(exchange / "step_8", make_state(), leave_out=["embed.weight"])
    with raising(errors.incomplete_checkpoint):
        adopt(lies, settings)


def test_a_model_that_cannot_be_divided_is_refused_before_it_is_read(
    settings: AdoptSettings, exchange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: CheckpointPart) -> list[str]:
        raise AssertionError(f"{self.path} was read")

    monkeypatch.setattr(CheckpointPart, "digests", read)
    written = write_checkpoint(exchange / "step_7", make_state())
    with pytest.raises(PlacementError, match="3 ranks cannot share"):
        adopt(written, replace(settings, ranks=3))
    with raising(errors.placements_unknown):
        adopt(written, replace(settings, placements=None))
    with pytest.raises(PlacementError, match="has no placement"):
        adopt(written, replace(settings, placements=lambda _: {}))
    with raising(errors.bad_placements):
        adopt(written, replace(settings, placements=lambda specs: {"x": specs["x"]}))


def test_what_is_written_while_it_is_read_is_refused(
    settings: AdoptSettings, exchange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_checkpoint(exchange / "step_7", make_state())
    digests = CheckpointPart.digests
    disturb: list[Callable[[Path], None]] = []

    def disturbed(self: CheckpointPart) -> list[str]:
        disturb[-1](Path(self.path))
        return digests(self)

    monkeypatch.setattr(CheckpointPart, "digests", disturbed)
    for disturbance in (overwrite_in_place, cut_short):
        disturb.append(disturbance)
        with raising(errors.checkpoint_changed):
            adopt(written, settings)
        shutil.rmtree(written)
        write_checkpoint(written, make_state())
    # What is deleted, or renamed over, meanwhile is adopted as it was opened.
    disturb.append(Path.unlink)
    adoption = adopt(written, settings)
    assert adoption.way is AdoptWay.COPY
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def test_a_damaged_memory_of_labels_is_none_and_adopting_goes_on(
    settings: AdoptSettings, exchange: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adopt(write_checkpoint(exchange / "step_7", make_state()), settings)
    (Path(settings.into) / RECORD_FILE).write_text("{}")
    assert adopt(write_checkpoint(exchange / "step_8", make_state(seed=8)), settings).label == "8"
    assert "adoptions.unreadable" in caplog.text
    assert [each.label for each in AdoptionRecord.of(Path(settings.into)).adopted] == ["8"]


def test_many_adoptions_at_once_are_one(settings: AdoptSettings, exchange: Path) -> None:
    written = write_checkpoint(exchange / "step_7", make_state())
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(adopt(written, settings).label)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            ends.append(getattr(error, "code", error))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ends) <= {"7", "publisher-busy"}
    assert "7" in ends
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())
