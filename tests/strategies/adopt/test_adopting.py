"""A trainer's directory becomes a version: linked or copied, digested, and checked again by every load."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_state import State, contents, make_state
from written_checkpoint import overwrite_in_place, write_checkpoint, write_file

from tests.forkserver import WITHOUT_PADDLE
from tests.raising import raising
from wsm.labels import MAX_LENGTH, bad_version
from wsm.strategies import (
    Adoption,
    AdoptSettings,
    AdoptWay,
    LoadReport,
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    TrainingNames,
    adopt,
    load,
    publish_snapshot,
    read_version,
)
from wsm.strategies import errors as strategies_errors
from wsm.strategies.adopt import adopt as adopting
from wsm.strategies.adopt import checkpoint
from wsm.strategies.adopt.checkpoint import CheckpointPart, absent_shards
from wsm.strategies.adopt.record import (
    RECORD_FILE,
    AdoptionRecord,
    Decision,
    KnownLabel,
    Relabel,
    asked_label,
    decide,
    label_for,
    stands_as_adopted,
)
from wsm.strategies.applier.coverage import check_coverage
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.snapshot import publish
from wsm.strategies.snapshot.placement import (
    AxisSegment,
    Member,
    Placement,
    Replicated,
    Split,
    local_shape,
    runs,
    split,
)
from wsm.strategies.snapshot.slice_digests import SliceDigests


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


def held(
    settings: AdoptSettings, label: str, *, ranks: int = 2, reports: list[LoadReport] | None = None
) -> State:
    """What the ranks of a group load of a version, the split tensor put together again."""
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
        if reports is not None:
            reports.append(report)
        for spec in cut:
            before = whole[spec.name][1] if rank and spec.name == "embed.weight" else b""
            whole[spec.name] = (spec, before + contents(target)[spec.name])
    return whole


def bytes_in(state: State) -> dict[str, bytes]:
    return {name: data for name, (_, data) in state.items()}


def test_stores_that_adopted_one_checkpoint_and_groups_of_any_size_name_one_digest(
    settings, exchange, tmp_path
):
    written = write_checkpoint(exchange / "step_7", make_state())
    stores = [replace(settings, into=tmp_path / name) for name in ("here", "there")]
    reports: list[LoadReport] = []
    for store in stores:
        adopt(written, store)
        for ranks in (1, 2, 4):
            held(store, "7", ranks=ranks, reports=reports)
    assert len({report.manifest_digest for report in reports}) == 1
    assert len({report.publication for report in reports}) == len(stores)


#: Rows, columns, a fused matrix of 8 heads of queries and 2 of keys, experts, and what every rank has.
LARGE = {
    "rows": ((64, 2048), split((64, 2048), 0)),
    "columns": ((16, 65536), split((16, 65536), 1)),
    "qkv": ((96, 1024), Split(0, (AxisSegment(64, 8), AxisSegment(32, 2)))),
    **{f"experts.{index}": ((64, 512), Member(index, 8)) for index in range(8)},
    "norm": ((64,), Replicated()),
}


def large_state() -> State:
    specs = [TensorSpec(name, "F32", shape) for name, (shape, _) in LARGE.items()]
    drawn = np.random.default_rng(7)
    return {spec.name: (spec, drawn.bytes(spec.nbytes)) for spec in specs}


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a file of tensors asked for, at the system call."""
    counted: list[int] = []
    preadv = os.preadv

    def counting(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        counted.append(preadv(descriptor, buffers, offset))
        return counted[-1]

    monkeypatch.setattr(os, "preadv", counting)
    return counted


def loaded_slices(settings: AdoptSettings, ranks: int) -> list[LoadReport]:
    """Load a large state in every rank of a group, and see that each holds its slices."""
    whole, reports = large_state(), []
    for rank in range(ranks):
        specs = []
        for name, (shape, placement) in LARGE.items():
            local = local_shape(name, placement, shape, rank, ranks)
            if local is not None:
                specs.append(TensorSpec(name, "F32", local))
        target = MemoryTarget(specs)
        source = SnapshotSource(
            settings.into, rank, device_id=0, world_size=ranks, shared_directory=None, verify="required"
        )
        reports.append(load(source, target, version="7"))
        for spec in specs:
            shape, placement = LARGE[spec.name]
            array = np.frombuffer(whole[spec.name][1], "<f4").reshape(shape)
            if isinstance(placement, Split):
                pieces = [
                    array.take(range(run.begin, run.begin + run.length), axis=placement.axis)
                    for run in runs(spec.name, placement, shape, rank, ranks)
                ]
                array = np.concatenate(pieces, axis=placement.axis)
            assert bytes(target.readable(spec.name)) == array.tobytes()
    return reports


def cut(specs: Mapping[str, TensorSpec]) -> Mapping[str, Placement]:
    """A hook: as the large model says."""
    return {name: LARGE[name][1] for name in specs}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_group_reads_an_adopted_model_once_and_not_once_per_rank(settings, exchange, read_bytes, ranks):
    chosen = replace(settings, ranks=ranks, placements=cut)
    adopt(write_checkpoint(exchange / "step_7", large_state()), chosen)
    model = sum(spec.nbytes for spec, _ in large_state().values())
    read_bytes.clear()
    reports = loaded_slices(chosen, ranks)
    assert sum(report.read_bytes for report in reports) == sum(read_bytes)
    assert sum(read_bytes) <= 1.25 * model
    assert all(report.verified == report.tensors for report in reports)
    # A group of another number finds no digests of its slices, and proves whole tensors.
    other = {2: 4, 4: 2, 8: 4}[ranks]
    read_bytes.clear()
    reports = loaded_slices(chosen, other)
    assert sum(report.read_bytes for report in reports) == sum(read_bytes) > 1.25 * model


def test_a_slice_that_a_trainer_overwrote_is_found_by_the_rank_that_holds_it(settings, exchange):
    chosen = replace(settings, placements=cut)
    written = write_checkpoint(exchange / "step_7", large_state())
    adopt(written, chosen)
    for file in written.glob("*.safetensors"):
        overwrite_in_place(file)
    with raising(DigestMismatchError):
        loaded_slices(chosen, 2)


def test_without_the_digests_of_slices_or_with_damaged_ones_whole_tensors_are_read(
    settings, exchange, caplog
):
    chosen = replace(settings, placements=cut)
    adopt(write_checkpoint(exchange / "step_7", large_state()), chosen)
    (zero, one) = sorted((Path(chosen.into) / "versions" / "7").glob("slices.*"))
    zero.unlink()
    one.write_bytes(one.read_bytes().replace(b'"rank":1', b'"rank":0'))
    reports = loaded_slices(chosen, 2)
    assert all(report.read_bytes > report.bytes for report in reports)
    assert one.name in caplog.text


@pytest.mark.parametrize("way", [AdoptWay.LINK, AdoptWay.COPY])
@pytest.mark.parametrize("index", [True, False])
def test_a_directory_outlives_its_trainer_and_any_number_of_ranks_loads_it_verified(
    settings, exchange, way, index
):
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
    settings, exchange
):
    first = adopt(write_checkpoint(exchange / "a" / "step_7", make_state()), settings)
    again = write_checkpoint(exchange / "b" / "step_7", make_state(), files=3, index=False)
    for marker in ("STABLE", "NCCL_READY", "tokenizer.json"):
        (again / marker).write_text(marker)
    before = sorted(Path(settings.into).rglob("*"))
    second = adopt(again, settings)
    assert (second.label, second.already, second.digest) == ("7", True, first.digest)
    assert sorted(Path(settings.into).rglob("*")) == before


def test_other_tensors_under_a_label_get_one_that_says_so_also_once_the_first_are_retired(settings, exchange):
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
    assert "label reused: 1 was other content" in str(adoptions[3].warning)
    assert sorted(path.name for path in Path(settings.into).glob("versions/[0-9]*")) == labels[-2:]
    assert bytes_in(held(settings, labels[-1])) == bytes_in(make_state(seed=13))
    assert AdoptionRecord.of(Path(settings.into)).adopted[-1].asked == "3"
    with raising("label-reused"):
        adopt(
            write_checkpoint(exchange / "step_1", make_state(seed=99)),
            replace(settings, relabel=Relabel.REFUSE),
        )


def test_what_was_adopted_is_known_to_stand_until_its_version_or_its_files_are_others(settings, exchange):
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


def test_a_label_that_a_publisher_took_is_not_taken_from_it(settings, exchange):
    publish_snapshot(settings.into, 1, {0: make_state(0), 1: make_state(1)}, durable=False)
    adoption = adopt(write_checkpoint(exchange / "step_1", make_state()), settings)
    assert adoption.reused
    assert (Path(settings.into) / "versions" / "1").exists()
    for step in (2, 3):
        adopt(write_checkpoint(exchange / f"step_{step}", make_state(seed=step)), settings)
    assert not (Path(settings.into) / "versions" / "1").exists()
    again = adopt(exchange / "step_1", settings)
    assert (again.label, again.reused) == (adoption.label, True)


def test_what_a_trainer_overwrites_in_place_never_passes_for_what_was_adopted(settings, exchange):
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


def test_names_of_the_trainer_are_exchanged_in_a_copy(settings, exchange):
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


def test_files_that_cannot_be_linked_are_copied(settings, exchange, monkeypatch):
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert adopt(write_checkpoint(exchange / "step_7", make_state()), settings).way is AdoptWay.COPY
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())


def test_what_overwriting_a_linked_file_costs_is_said_and_logged(settings, exchange, caplog):
    written = write_checkpoint(exchange / "step_7", make_state())
    cost = f"into the files of {written} in place is written into version 7"
    assert cost in str(adopt(written, settings).warning)
    assert cost in caplog.text
    assert adopt(written, replace(settings, way=AdoptWay.COPY), version=8).warning is None


def test_blocks_are_shared_where_the_file_system_can_and_no_overwriting_costs_the_version(
    settings, exchange, monkeypatch
):
    """No file system that shares blocks is at hand: its answer to the request is stood in for."""

    def share(made: int, request: int, source: int) -> None:
        assert request == 0x40049409
        os.copy_file_range(source, made, os.fstat(source).st_size, offset_src=0)

    monkeypatch.setattr(adopting.fcntl, "ioctl", share)
    written = write_checkpoint(exchange / "step_7", make_state())
    adoption = adopt(written, settings)
    assert (adoption.way, adoption.warning) == (AdoptWay.COPY, None)
    for file in written.glob("*.safetensors"):
        overwrite_in_place(file)
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())


def test_without_taking_in_only_the_label_is_taken_from_the_directory(settings):
    adoption = adopt("/nowhere/global_step_1200", replace(settings, way=AdoptWay.NONE))
    assert (adoption.label, adoption.digest, adoption.already) == ("1200", None, False)
    assert not Path(settings.into).exists()


INDEX = "model.safetensors.index.json"


def first_of(directory: Path) -> Path:
    return min(directory.glob("*.safetensors"))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def only_markers(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    (directory / "NCCL_READY").touch()


def twice(directory: Path) -> None:
    (directory / INDEX).unlink()
    shutil.copy(first_of(directory), directory / "consolidated.safetensors")


def half_a_set(directory: Path) -> None:
    (directory / INDEX).unlink()
    (directory / "model-00002-of-00002.safetensors").unlink()


CHANGES = {"metadata": {"base_version": "000006", "delta_encoding": "xor"}, "weight_map": {}}

DAMAGES = {
    "unfinished": (lambda path: first_of(path).unlink(), checkpoint.incomplete_checkpoint),
    "half a set": (half_a_set, checkpoint.incomplete_checkpoint),
    "truncated": (lambda path: cut_short(first_of(path)), checkpoint.incomplete_checkpoint),
    "half a header": (lambda path: os.truncate(first_of(path), 20), checkpoint.incomplete_checkpoint),
    "index of no JSON": (lambda path: (path / INDEX).write_text("{"), checkpoint.incomplete_checkpoint),
    "index that leads out": (
        lambda path: (path / INDEX).write_text('{"weight_map": {"a": "../step_6/a"}}'),
        checkpoint.incomplete_checkpoint,
    ),
    "changes alone": (lambda path: (path / INDEX).write_text(json.dumps(CHANGES)), "delta-checkpoint"),
    "markers alone": (only_markers, checkpoint.no_checkpoint),
    "tensors twice": (twice, strategies_errors.not_covered),
    "gone": (shutil.rmtree, "checkpoint-missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_whole_checkpoint_is_refused_and_nothing_is_written(settings, exchange, damage):
    spoil, expected = DAMAGES[damage]
    written = write_checkpoint(exchange / "step_7", make_state())
    spoil(written)
    for chosen in (replace(settings, ranks=None, placements=None), settings):
        with raising(expected) as refused:
            adopt(written, chosen)
    assert damage != "half a set" or "model-00002-of-00002.safetensors is not there" in str(refused.value)
    assert "publish" not in str(refused.value) or expected == "delta-checkpoint"
    assert refused.value.retryable == (expected is checkpoint.incomplete_checkpoint)
    assert not Path(settings.into).exists()


def test_an_index_decides_which_files_count_and_must_tell_the_truth(settings, exchange):
    written = write_checkpoint(exchange / "step_7", make_state())
    spec, data = make_state()["embed.weight"]
    write_file(written / "adapter.safetensors", {"lora": (replace(spec, name="lora"), data)})
    adoption = adopt(written, settings)
    assert adoption.left_out == ("adapter.safetensors",)
    assert "adapter.safetensors" in str(adoption.warning)
    packed = b'{"packed": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}'
    (written / "packed.safetensors").write_bytes(struct.pack("<Q", len(packed)) + packed + b"x")
    assert adopt(written, settings).left_out == ("adapter.safetensors", "packed.safetensors")
    write_file(written / "model.safetensors", make_state(seed=9))
    with raising("stale-index", match=r"model\.safetensors\.index\.json .* model\.safetensors holds"):
        adopt(written, settings, version=8)
    lies = write_checkpoint(exchange / "step_8", make_state(), leave_out=["embed.weight"])
    with raising(checkpoint.incomplete_checkpoint):
        adopt(lies, settings)


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        (["model-00001-of-00002"], ["model-00002-of-00002"]),
        (["model-00000-of-00003", "model-00002-of-00003"], ["model-00001-of-00003"]),
        (["a-1-of-2", "a-2-of-2", "b-2-of-2", "c"], ["b-1-of-2"]),
        (["model-00001-of-00001", "adapter_model", "x-of-y"], []),
        (["model-00001-of-99999999"], []),
    ],
)
def test_files_that_number_themselves_say_which_of_them_is_absent(names, absent):
    def files(stems: list[str]) -> list[str]:
        return [f"{stem}.safetensors" for stem in stems]

    assert absent_shards(files(names)) == files(absent)


def of_this_model(specs: Mapping[str, TensorSpec]) -> Mapping[str, Placement]:
    """A hook that refuses what is no model of the small state."""
    check_coverage(
        [(spec, "the checkpoint") for spec in specs.values()],
        {spec.name: spec for spec, _ in make_state().values()},
    )
    return placed(specs)


def test_a_file_that_is_not_the_models_is_named_with_what_to_do_about_it(settings, exchange):
    written = write_checkpoint(exchange / "step_7", make_state(), files=1, index=False)
    spec, data = make_state()["embed.weight"]
    write_file(written / "adapter_model.safetensors", {"lora": (replace(spec, name="lora"), data)})
    with raising(
        strategies_errors.not_covered, match=r"move adapter_model\.safetensors away, or write an index"
    ):
        adopt(written, replace(settings, placements=of_this_model))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "model.language_model."])
def test_a_prefix_before_all_names_is_named_and_can_be_left_out(settings, exchange, prefix):
    state = {
        f"{prefix}{name}": (replace(spec, name=f"{prefix}{name}"), data)
        for name, (spec, data) in make_state().items()
    }
    written = write_checkpoint(exchange / "step_7", state)
    of_model = replace(settings, placements=of_this_model)
    with raising(strategies_errors.not_covered, match=f"but for the prefix '{prefix}'.*names: {{strip: "):
        adopt(written, of_model)
    adopt(written, replace(of_model, names=TrainingNames({}, strip=prefix)))
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())


def test_a_number_above_the_root_is_no_label(settings, exchange):
    beside = exchange.with_name("exchange_3")
    best = write_checkpoint(beside / "best", make_state(seed=1))
    assert adopt(best, replace(settings, roots=[beside])).label == "best"


def test_a_model_that_cannot_be_divided_is_refused_before_it_is_read(settings, exchange, monkeypatch):
    def read(self: CheckpointPart) -> list[str]:
        raise AssertionError(f"{self.path} was read")

    monkeypatch.setattr(CheckpointPart, "digests", read)
    written = write_checkpoint(exchange / "step_7", make_state())
    with raising("placement", match="3 ranks cannot share"):
        adopt(written, replace(settings, ranks=3))
    with raising("placements-unknown"):
        adopt(written, replace(settings, placements=None))
    with raising("placement", match="has no placement"):
        adopt(written, replace(settings, placements=lambda _: {}))
    with raising(checkpoint.bad_placements):
        adopt(written, replace(settings, placements=lambda specs: {"x": specs["x"]}))


def test_what_is_written_while_it_is_read_is_refused(settings, exchange, monkeypatch):
    written = write_checkpoint(exchange / "step_7", make_state())
    digests = CheckpointPart.digests
    disturb: list[Callable[[Path], None]] = []

    def disturbed(self: CheckpointPart, slices: Sequence[SliceDigests]) -> list[str]:
        disturb[-1](Path(self.path))
        return digests(self, slices)

    monkeypatch.setattr(CheckpointPart, "digests", disturbed)
    for disturbance in (overwrite_in_place, cut_short):
        disturb.append(disturbance)
        with raising(checkpoint.checkpoint_changed):
            adopt(written, settings)
        shutil.rmtree(written)
        write_checkpoint(written, make_state())
    # What is deleted, or renamed over, meanwhile is adopted as it was opened.
    disturb.append(Path.unlink)
    adoption = adopt(written, settings)
    assert adoption.way is AdoptWay.COPY
    assert bytes_in(held(settings, "7")) == bytes_in(make_state())


def test_a_damaged_memory_of_labels_is_none_and_adopting_goes_on(settings, exchange, caplog):
    adopt(write_checkpoint(exchange / "step_7", make_state()), settings)
    (Path(settings.into) / RECORD_FILE).write_text("{}")
    assert adopt(write_checkpoint(exchange / "step_8", make_state(seed=8)), settings).label == "8"
    assert "adoptions.unreadable" in caplog.text
    assert [each.label for each in AdoptionRecord.of(Path(settings.into)).adopted] == ["8"]


def test_many_adoptions_at_once_are_one(settings, exchange):
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


# Kills an adoption before each of its file operations in turn, each time in a directory of its own.
KILLED_EVERYWHERE = """
import json, sys
from pathlib import Path
from dying_publisher import deaths
from small_state import make_state
from written_checkpoint import write_checkpoint
from wsm.strategies import AdoptSettings, adopt, read_version
from wsm.strategies.adopt.record import AdoptionRecord

root = Path(sys.argv[1])
steps = {step: write_checkpoint(root / f"step_{step}", make_state(step)) for step in (1, 2)}
into, seen, wrong = root / "0", set(), []

def take(step):
    return adopt(steps[step], AdoptSettings(into, [root], ranks=1, durable=False))

take(1)
for operations in deaths(lambda: take(2)):
    visible, announced = (into / "versions" / "2").exists(), read_version(into)
    remembered = "2" in [each.label for each in AdoptionRecord.of(into).adopted]
    seen.add((visible, announced))
    again = take(2)
    left = [path.name for path in into.iterdir() if path.name.startswith(".")]
    ended = (again.label, again.already, read_version(into), left)
    if ended != ("2", visible, "2", []) or remembered < visible:
        wrong.append([operations, visible, remembered, ended])
    into = root / str(operations + 1)
    take(1)
print(json.dumps([sorted(seen), wrong]))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_an_adoption_that_was_killed_anywhere_is_finished_by_the_same_call(tmp_path):
    seen, wrong = json.loads(WITHOUT_PADDLE.run("-c", KILLED_EVERYWHERE, tmp_path))
    assert seen == [[False, "1"], [True, "1"], [True, "2"]]
    assert wrong == []


def test_a_version_that_is_visible_is_not_called_unpublished_and_is_announced_next_time(
    settings, exchange, monkeypatch
):
    adopt(write_checkpoint(exchange / "step_1", make_state()), settings)
    written = write_checkpoint(exchange / "step_2", make_state(2))

    def full(path: Path, data: bytes, **options: bool) -> None:
        if path.name == "version.yaml" and path.parent == Path(settings.into):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, data, **options)

    with monkeypatch.context() as patched:
        patched.setattr(publish, "replace_file", full)
        with raising(strategies_errors.StorageError, match="version 2 can be loaded .* publish it again"):
            adopt(written, settings)
    assert read_version(settings.into) == "1"
    assert adopt(written, settings).already
    assert read_version(settings.into) == "2"
    adopt(exchange / "step_1", settings)  # an older one is there, and stays the older one
    assert read_version(settings.into) == "2"


# -- what a directory is called, and whether there is anything to do: the rules alone --------------------


ONE, TWO, LIKE_TWO = "1" * 32, "2" * 32, "2" * 8 + "3" * 24


@pytest.mark.parametrize(
    ("directory", "label"),
    [
        ("weight_v000012", "12"),
        ("weight_update_v7", "7"),
        ("step_7", "7"),
        ("global_step_1200", "1200"),
        ("weight_v000000", "0"),
        ("1200", "1200"),
        ("weights.7", "7"),
        ("policy-v2.5", "policy-v2.5"),
        ("best", "best"),
        ("global_step_40/actor/huggingface", "40"),
        ("run_3/global_step_60/actor", "60"),
        ("run_3/policy-v2.5", "policy-v2.5"),
        ("exchange/best", "best"),
    ],
)
def test_a_label_is_the_number_at_the_end_of_the_name_or_the_name(directory: str, label: str) -> None:
    assert label_for(directory) == label
    assert label_for(directory, 12) == label_for(directory, "12") == "12"
    assert label_for(directory, "000012") == "000012", "a label that is given stays as it is"


@pytest.mark.parametrize(("directory", "asked"), [("latest", None), ("a b", None), ("step_7", "")])
def test_what_is_no_label_is_refused(directory: str, asked: str | None) -> None:
    with raising(bad_version):
        label_for(directory, asked)


def test_what_is_there_already_is_decided_by_the_digest_and_never_by_the_label_alone() -> None:
    def decided(known: dict[str, KnownLabel], relabel: Relabel = Relabel.MARK) -> Decision:
        return decide("1", TWO, known, relabel)

    assert decided({}) == Decision("1", already=False, replace=False)
    assert decided({"1": KnownLabel(TWO, stands=True)}).already
    # Retired, or its files changed since: the same content comes back under its own label.
    again = decided({"1": KnownLabel(TWO, stands=False)})
    assert again == Decision("1", already=False, replace=True)
    other = {"1": KnownLabel(ONE, stands=True)}
    marked = decided(other)
    assert marked == Decision("1.reused-22222222", already=False, replace=False)
    assert decided({**other, marked.label: KnownLabel(TWO, stands=True)}).already
    with raising("label-reused", match=f"digest {ONE}, now {TWO}"):
        decided(other, Relabel.REFUSE)


def test_a_marked_label_tells_its_digest_apart_has_room_and_gives_the_trainers_own_word_back() -> None:
    known = {"1": KnownLabel(ONE, stands=True), "1.reused-22222222": KnownLabel(LIKE_TWO, stands=True)}
    assert decide("1", TWO, known, Relabel.MARK).label == "1.reused-" + "2" * 16
    long = "v" * MAX_LENGTH
    marked = decide(long, TWO, {long: KnownLabel(ONE, stands=False)}, Relabel.MARK).label
    assert len(marked) == MAX_LENGTH
    assert label_for("x", marked) == marked
    assert asked_label("1.reused-22222222") == asked_label("1.reused-" + "2" * 16) == asked_label("1") == "1"
