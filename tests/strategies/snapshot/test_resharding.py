"""A version that was written for some number of ranks, read by another: bit for bit what slicing gives."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.raising import raising
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, errors, inspect, load, publish_snapshot
from wsm.strategies.inventory import take_inventory
from wsm.strategies.promise import seal
from wsm.strategies.snapshot._resliced_shard import STAGING_BYTES
from wsm.strategies.snapshot.placement import (
    AxisSegment,
    Member,
    Placement,
    Replicated,
    Split,
    split,
)
from wsm.strategies.tensor import ITEM_BYTES

#: Whole tensors: dtype, shape, placement. Some have rows longer than a staging buffer and a chunk.
MODEL: dict[str, tuple[str, tuple[int, ...], Placement]] = {
    "embed": ("F32", (64, 8), split((64, 8), 0)),
    "up": ("BF16", (24, 32), split((24, 32), -1)),
    "down": ("F16", (32, 24), split((32, 24), 0)),
    "qkv": ("BF16", (8, 48), Split(1, (AxisSegment(32, 8), AxisSegment(8, 2), AxisSegment(8, 2)))),
    "qkv.bias": ("F32", (48,), Split(0, (AxisSegment(32, 8), AxisSegment(8, 2), AxisSegment(8, 2)))),
    "gate_up": ("F8_E4M3", (3, 5, 16, 2), Split(2, (AxisSegment(8), AxisSegment(8)))),
    "large.rows": ("U8", (1 << 10, 1 << 11), split((1 << 10, 1 << 11), 1)),
    "long.rows": ("U8", (2, 5 << 18), split((2, 5 << 18), 1)),
    "tall": ("U8", (5 << 18,), split((5 << 18,), 0)),
    "norm": ("F32", (16,), Replicated()),
    "steps": ("I64", (), Replicated()),
    "nothing": ("F32", (0, 4), split((0, 4), 0)),
    "hollow": ("F32", (4, 0), split((4, 0), 0)),
    **{f"experts.{index}": ("F32", (4, 4), Member(index, 4)) for index in range(4)},
}


@pytest.fixture(scope="module")
def whole() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    extents = {name: (*shape, ITEM_BYTES[dtype]) for name, (dtype, shape, _) in MODEL.items()}
    return {
        name: np.frombuffer(generator.bytes(math.prod(shape)), np.uint8).reshape(shape)
        for name, shape in extents.items()
    }


def sliced(whole, rank: int, ranks: int) -> dict[str, tuple[TensorSpec, bytes]]:
    """One rank's state dict, cut with numpy by the rules that tensor parallelism has always had."""
    state = {}
    for name, (dtype, _, placement) in MODEL.items():
        array = whole[name]
        if isinstance(placement, Member):
            if placement.index * ranks // placement.of != rank:
                continue
        elif isinstance(placement, Split):
            parts, begin = [], 0
            for segment in placement.segments:
                before = (slice(None),) * placement.axis
                stretch = array[(*before, slice(begin, begin + segment.extent))]
                copies = max(ranks // (segment.heads or ranks), 1)
                parts.append(np.split(stretch, ranks // copies, axis=placement.axis)[rank // copies])
                begin += segment.extent
            array = np.concatenate(parts, axis=placement.axis)
        state[name] = (TensorSpec(name, dtype, array.shape[:-1]), array.tobytes())
    return state


def placements() -> dict[str, Placement]:
    return {name: placement for name, (_, _, placement) in MODEL.items()}


def publish(root, whole, ranks: int, version: int = 1, **options):
    shards = {rank: sliced(whole, rank, ranks) for rank in range(ranks)}
    options.setdefault("placements", placements())
    return publish_snapshot(root, version, shards, part_bytes=1 << 21, durable=False, **options)


def source(root, rank: int, ranks: int) -> SnapshotSource:
    return SnapshotSource(root, rank, device_id=rank, world_size=ranks, shared_directory=None)


def loaded(root, state, rank: int, ranks: int, **options):
    target = MemoryTarget(spec for spec, _ in state.values())
    report = load(source(root, rank, ranks), target, **options)
    assert {name: bytes(target.readable(name)) for name in state} == {
        name: data for name, (_, data) in state.items()
    }
    return report


@pytest.mark.slow_but("1-2")
@pytest.mark.parametrize("written", [1, 2, 4])
@pytest.mark.parametrize("read", [1, 2, 4])
def test_every_rank_loads_what_slicing_the_whole_model_gives(tmp_path, whole, written, read):
    published = publish(tmp_path, whole, written)
    for rank in range(read):
        state = sliced(whole, rank, read)
        report = loaded(tmp_path, state, rank, read)
        assert report.verified == len(state)
        assert report.manifest_digest == published.manifest_digest
        kept = sum(spec.nbytes for spec, _ in state.values())
        assert report.bytes == kept
        # A digest proves a whole tensor: what is cut smaller is read once for every cut, the rest just once;
        # besides, keys and values of which several of the writing ranks have copies.
        copies = sum(spec.nbytes for name, (spec, _) in sliced(whole, 0, 1).items() if "qkv" in name)
        assert kept <= report.read_bytes <= kept * max(1, read // written) + copies


def test_looking_at_it_reads_no_data_and_tells_the_same_files(tmp_path, whole):
    publish(tmp_path, whole, 2)
    state = sliced(whole, 0, 1)
    target = MemoryTarget(spec for spec, _ in state.values())
    preview = inspect(source(tmp_path, 0, 1), 1, target=target)
    assert preview.files == loaded(tmp_path, state, 0, 1).files
    assert len([file for file in preview.files if ".tp1." in file]) > 0


def test_a_rank_opens_only_the_shards_that_it_needs(tmp_path, whole):
    publish(tmp_path, whole, 4)
    report = loaded(tmp_path, sliced(whole, 1, 2), 1, 2)
    assert not [file for file in report.files if ".tp0." in file]


def test_a_staging_buffer_for_each_thread_is_all_that_is_held_beside_the_target(tmp_path, whole):
    publish(tmp_path, whole, 1)
    for threads in (1, 2, 3):  # as many as were asked for
        report = loaded(tmp_path, sliced(whole, 0, 2), 0, 2, threads=threads)
        assert report.peak_extra_bytes == threads * STAGING_BYTES


def test_one_flipped_bit_outside_of_the_slice_is_found_too(tmp_path, whole):
    path = publish(tmp_path, whole, 1).path
    (part,) = [file for file in (tmp_path / "versions" / "1").glob("*.part*") if "tall" in head(file)]
    data = bytearray(part.read_bytes())
    position = data.index(whole["tall"].tobytes()) + (5 << 18) - 5  # rank 0 keeps the first half
    data[position] ^= 8
    part.write_bytes(data)
    state = sliced(whole, 0, 2)
    with raising(errors.DigestMismatchError, match="'tall'") as caught:
        loaded(tmp_path, state, 0, 2)
    assert caught.value.touched
    assert caught.value.origin == f"{path}/{part.name}"
    (broken,) = [row for row in inventory(tmp_path, 0, 2).tensors if not row.kept]
    assert (broken.spec.name, part.name in broken.broken) == ("tall", True)
    publish(tmp_path, whole, 1, version=2)
    loaded(tmp_path, state, 0, 2)


def inventory(root, rank: int, ranks: int):
    return take_inventory(source(root, rank, ranks), strategy="ipc_snapshot", rank=rank)


def test_what_it_holds_is_verified_by_the_tensors_that_its_slices_were_cut_from(tmp_path, whole):
    publish(tmp_path, whole, 1)
    state = sliced(whole, 1, 2)
    found = inventory(tmp_path, 1, 2)
    assert found.digest == loaded(tmp_path, state, 1, 2).digest
    assert all(row.promised == row.digest and row.kept for row in found.tensors)


def head(file) -> str:
    with file.open("rb") as part:
        return part.read(int.from_bytes(part.read(8), "little")).decode()


def refused(root, state, which: tuple[int, int], error: type[Exception], match: str):
    rank, ranks = which
    target = MemoryTarget(spec for spec, _ in state.values())
    tainted = []
    with raising(error, match=match) as caught:
        load(source(root, rank, ranks), target, taint=lambda: tainted.append(1))
    assert not tainted
    assert "\n" not in str(caught.value)
    return caught.value


def test_without_placements_a_version_is_for_its_own_number_of_ranks(tmp_path, whole):
    publish(tmp_path, whole, 2, placements=None)
    state = sliced(whole, 0, 1)
    refused(tmp_path, state, (0, 1), errors.shard_identity, "world size 2, this rank needs world size 1")
    loaded(tmp_path, sliced(whole, 1, 2), 1, 2)


def test_a_number_of_ranks_that_does_not_divide_is_refused(tmp_path, whole):
    publish(tmp_path, whole, 1)
    error = refused(tmp_path, sliced(whole, 0, 1), (0, 3), "placement", "3 ranks cannot share evenly")
    assert error.tensor == "embed"


def test_a_rank_that_the_group_does_not_have_is_refused(tmp_path, whole):
    publish(tmp_path, whole, 1)
    refused(tmp_path, sliced(whole, 0, 1), (2, 2), errors.shard_identity, "world size 3")


def test_a_placement_that_the_tensor_does_not_have_is_refused_when_it_is_published(tmp_path, whole):
    for name, placement, text in [
        ("up", split((24, 64), 1), "gives rank 0 of 2 the shape"),
        ("up", Split(7, (AxisSegment(2),)), "axis 7"),
        ("up", Split(1, (AxisSegment(32, 5),)), "5 heads in an extent of 32"),
        ("up", Split(1, (AxisSegment(33),)), "2 ranks cannot share"),
        ("up", Member(1, 2), "gives rank 0 of 2 nothing"),
        ("up", Member(0, 3), "3 members"),
    ]:
        with raising("placement", match=text):
            publish(tmp_path, whole, 2, placements={**placements(), name: placement})
    partly = placements()
    del partly["up"]
    with raising("placement", match="'up' has no placement, although others have"):
        publish(tmp_path, whole, 2, placements=partly)
    assert not (tmp_path / "version.yaml").exists()


def test_placements_that_are_added_later_replace_a_publication_without_them(tmp_path, whole):
    publish(tmp_path, whole, 2, placements=None)
    with raising(errors.VersionExistsError):
        publish(tmp_path, whole, 2)
    publish(tmp_path, whole, 2, replace=True)
    loaded(tmp_path, sliced(whole, 0, 4), 0, 4)
    publish(tmp_path, whole, 2, placements=None, replace=True)  # who does not say takes nothing back
    loaded(tmp_path, sliced(whole, 0, 4), 0, 4)


def edit(root, rank: int, change) -> None:
    """Change one shard's manifest of version 1 and seal it, and the version's, as a buggy writer would."""
    path = root / "versions" / "1"
    shard = path / f"model_state.tp{rank}.{rank}.manifest.json"
    fields = json.loads(shard.read_bytes())
    change(fields)
    del fields["digest"]
    data = seal(fields)
    shard.write_bytes(data)
    whole = json.loads((path / "model_state.manifest.json").read_bytes())
    whole["shards"][rank]["digest"] = json.loads(data)["digest"]
    del whole["digest"]
    (path / "model_state.manifest.json").write_bytes(seal(whole))


def kind_of(fields, name: str) -> int:
    return next(row[1] for row in fields["tensors"] if row[0] == name)


def test_shards_that_place_a_tensor_differently_do_not_fit_together(tmp_path, whole):
    publish(tmp_path, whole, 2)

    def other_axis(fields):
        fields["kinds"][kind_of(fields, "tall")]["placement"] = {"how": "replicated"}

    edit(tmp_path, 1, other_axis)
    error = refused(tmp_path, sliced(whole, 0, 1), (0, 1), "bad-slices", "'tall' is placed otherwise")
    assert error.problems[0][0] == "tall"


def test_a_tensor_that_some_shards_do_not_place_cannot_be_read_by_others(tmp_path, whole):
    publish(tmp_path, whole, 2)

    def forget(fields):
        fields["kinds"][kind_of(fields, "tall")]["placement"] = None

    edit(tmp_path, 1, forget)
    error = refused(tmp_path, sliced(whole, 0, 1), (0, 1), "placement-missing", "'tall'")
    assert error.tensors == ("tall",)


def test_shards_that_lack_a_slice_or_have_one_too_many_do_not_fit_together(tmp_path, whole):
    one = {"a": (TensorSpec("a", "U8", (2,)), b"ab"), "b": (TensorSpec("b", "U8", (2,)), b"cd")}
    short = {"b": one["b"]}
    halves = {"a": split((4,), 0), "b": Replicated()}
    publish_snapshot(tmp_path / "missing", 1, {0: one, 1: short}, placements=halves, durable=False)
    refused(tmp_path / "missing", one, (0, 1), "bad-slices", "'a' is missing on rank 1")

    copies = {"a": Replicated(), "b": Replicated()}
    other = {**one, "b": (one["b"][0], b"xy")}
    publish_snapshot(tmp_path / "twins", 1, {0: one, 1: other}, placements=copies, durable=False)
    refused(
        tmp_path / "twins",
        one,
        (0, 1),
        "bad-slices",
        "'b' overlaps: ranks 0 and 1 hold the same slice",
    )


def test_the_manifests_of_all_shards_must_be_of_one_publication(tmp_path, whole):
    publish(tmp_path / "a", whole, 2)
    publish(tmp_path / "b", whole, 2)
    name = "versions/1/model_state.tp1.1.manifest.json"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    refused(tmp_path / "a", sliced(whole, 0, 1), (0, 1), errors.differs_from_manifest, "another publication")
    (tmp_path / "a" / name).unlink()
    refused(tmp_path / "a", sliced(whole, 0, 1), (0, 1), errors.differs_from_manifest, "is missing")


def test_the_parts_of_another_rank_under_a_rank_s_names_are_refused(tmp_path, whole):
    publish(tmp_path, whole, 2)
    path = tmp_path / "versions" / "1"
    for part in path.glob("model_state.tp1.1.part*"):
        (path / part.name.replace("tp1.1", "tp0.0")).write_bytes(part.read_bytes())
    refused(tmp_path, sliced(whole, 0, 1), (0, 1), errors.differs_from_manifest, "the parts are of rank 1")
