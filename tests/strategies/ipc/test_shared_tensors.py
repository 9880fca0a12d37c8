"""Shared tensors and their metas: who owns the memory, who keeps it how long, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.another_user import ANOTHER_USER
from tests.forkserver import WITHOUT_PADDLE
from tests.raising import raising
from wsm.shared_directory import private_directory
from wsm.strategies import MemoryTarget, TensorSpec, errors, load
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.errors import ManifestError
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.ipc import _abandoned as abandoned
from wsm.strategies.ipc import shared_segment as share_errors
from wsm.strategies.ipc import shared_tensors
from wsm.strategies.ipc._abandoned import remove_abandoned
from wsm.strategies.ipc.metas import HOST, IpcMetas, TensorMeta, TensorPlace
from wsm.strategies.ipc.shared_segment import AttachedSegment, OwnedSegment, sweep
from wsm.strategies.ipc.shared_tensors import SharedTensors
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.promise import PromisedTensor, seal
from wsm.strategies.tensor import ITEM_BYTES

SPEC = TensorSpec("w", "F32", (1000,))
A, B, C = ({"w": (SPEC, bytes([byte]) * SPEC.nbytes)} for byte in (1, 2, 3))

# Publishes version 1 and waits to be killed.
_TRAINER = """
import sys
from wsm.strategies import TensorSpec
from wsm.strategies.ipc.shared_tensors import SharedTensors
spec = TensorSpec("w", "F32", (1000,))
shared = SharedTensors(sys.argv[1])
shared.publish(1, {0: {"w": (spec, b"\\x01" * spec.nbytes)}})
print("published", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "metas"


@pytest.fixture
def trainer(directory):
    with SharedTensors(directory) as shared:
        yield shared


@pytest.fixture
def dead_trainer(directory):
    """A trainer that published version 1 and was killed."""
    with WITHOUT_PADDLE.start("-c", _TRAINER, directory, stderr=None) as process:
        assert process.stdout.readline() == b"published\n"
        process.kill()
    return process


def source(directory, **options):
    return IpcSource(directory, 0, device_id=0, world_size=1, **options)


def segments_of(directory):
    return set(IpcMetas.decode((directory / "ipc_metas_0").read_bytes(), file="metas").segments)


def in_shared_memory():
    return {path.name for path in private_directory().glob("wsm-ipc.*")}


@pytest.mark.parametrize("adopt", [True, False])
def test_memory_is_kept_where_target_and_source_allow_it_and_copied_otherwise(directory, trainer, adopt):
    trainer.publish(1, {0: A})
    target = MemoryTarget([SPEC], adopting=True)
    report = load(source(directory, adopt=adopt), target, name="ipc", version=1)
    assert bytes(target.readable("w")) == A["w"][1]
    assert report.adopted_bytes == (SPEC.nbytes if adopt else 0)
    assert report.verified == 1
    assert trainer.leased() is adopt


def test_kept_memory_is_neither_written_nor_freed_while_it_is_kept(directory, trainer):
    trainer.publish(1, {0: A})
    target = MemoryTarget([SPEC], adopting=True)
    load(source(directory), target, name="ipc", version=1)
    kept = segments_of(directory)
    for version, state in ((2, B), (3, C), (4, B)):
        trainer.publish(version, {0: state})
        assert bytes(target.readable("w")) == A["w"][1]
        assert kept.isdisjoint(segments_of(directory))
    target.release()
    assert not trainer.leased()
    trainer.publish(5, {0: A})
    assert not kept & in_shared_memory() or kept == segments_of(directory)


def test_what_a_worker_writes_into_kept_memory_the_trainer_does_not_see(directory, trainer):
    trainer.publish(1, {0: A})
    worker, other = MemoryTarget([SPEC], adopting=True), MemoryTarget([SPEC])
    load(source(directory), worker, name="ipc", version=1)
    worker.writable("w")[:4] = b"mine"
    load(source(directory), other, name="ipc", version=1)
    assert bytes(other.readable("w")) == A["w"][1]


def test_versions_alternate_between_two_segments_and_need_no_more_memory(directory, trainer):
    created = [
        trainer.publish(version, {0: A if version % 2 else B}).created_bytes for version in range(1, 8)
    ]
    assert created[0] == created[1] > 0
    assert created[2:] == [0] * 5


def test_a_reader_that_is_loading_holds_its_version(directory, trainer):
    trainer.publish(1, {0: A})
    published = []

    def publish_twice(done, total):
        if not published:
            published.extend(trainer.publish(version, {0: state}) for version, state in ((2, B), (3, C)))

    target = MemoryTarget([SPEC])
    load(source(directory), target, name="ipc", version=1, progress=publish_twice)
    assert len(published) == 2
    assert bytes(target.readable("w")) == A["w"][1]


def test_closing_takes_names_and_metas_away_and_leaves_readers_their_memory(directory):
    with SharedTensors(directory) as shared:
        shared.publish(1, {0: A})
        target = MemoryTarget([SPEC], adopting=True)
        load(source(directory), target, name="ipc", version=1)
        names = segments_of(directory)
    assert names.isdisjoint(in_shared_memory())
    assert not (directory / "ipc_metas_0").exists()
    assert bytes(target.readable("w")) == A["w"][1]


@pytest.mark.processes
def test_a_dead_trainers_version_is_copied_and_never_kept(directory, dead_trainer):
    target = MemoryTarget([SPEC], adopting=True)
    report = load(source(directory), target, name="ipc", version=1)
    assert (report.adopted_bytes, report.verified) == (0, 1)
    assert bytes(target.readable("w")) == A["w"][1]
    with SharedTensors(directory) as shared:
        shared.publish(2, {0: B})


@pytest.mark.processes
def test_a_trainer_that_is_killed_while_a_rank_loads_takes_nothing_away(directory):
    with WITHOUT_PADDLE.start("-c", _TRAINER, directory, stderr=None) as process:
        assert process.stdout.readline() == b"published\n"
        kept, copied = MemoryTarget([SPEC], adopting=True), MemoryTarget([SPEC])
        for target in (kept, copied):
            load(source(directory), target, name="ipc", progress=lambda done, total: process.kill())
        process.wait()
    assert bytes(kept.readable("w")) == bytes(copied.readable("w")) == A["w"][1]
    with SharedTensors(directory) as shared:
        shared.publish(2, {0: B})
        assert bytes(kept.readable("w")) == A["w"][1]


@pytest.mark.processes
def test_the_next_trainer_sweeps_what_a_dead_one_left_when_it_has_published(directory, dead_trainer):
    orphans = segments_of(directory)
    with SharedTensors(directory) as shared:
        assert orphans <= in_shared_memory()  # a rank may need to recover with it still
        load(source(directory), MemoryTarget([SPEC]), name="ipc", version=1)
        shared.publish(2, {0: B})
        assert orphans.isdisjoint(in_shared_memory())


# Publishes versions 1 and 2, so that it owns two segments, and is killed; or as it writes version 3.
_TRAINER_OF_TWO = """
import os, signal, sys
from wsm.strategies import TensorSpec
from wsm.strategies.ipc.shared_tensors import SharedTensors
spec = TensorSpec("w", "F32", (1000,))
shared = SharedTensors(sys.argv[1], memory_directory=sys.argv[2])
for version in (1, 2):
    shared.publish(version, {0: {"w": (spec, bytes([version]) * spec.nbytes)}})
larger = TensorSpec("w", "F32", (2000,))
die = lambda _: os.kill(os.getpid(), signal.SIGKILL)
shared.publish(3, {0: {"w": (larger, bytes(larger.nbytes))}}, progress=die)
"""


@pytest.fixture
def left_behind(directory, tmp_path):
    """What a trainer leaves that was killed while it wrote its third version: the directory of its memory."""
    memory = tmp_path / "memory"
    memory.mkdir()
    with WITHOUT_PADDLE.start("-c", _TRAINER_OF_TWO, directory, memory, stderr=None) as dying:
        assert dying.wait() == -signal.SIGKILL
    assert len(list(memory.iterdir())) == 3
    return memory


def names_in(memory):
    return {path.name for path in memory.iterdir()}


@pytest.mark.processes
def test_a_rank_that_loads_what_a_dead_trainer_published_removes_what_no_rank_can_find(
    directory, left_behind
):
    for _ in range(2):  # what is named stays, and can be loaded again
        target = MemoryTarget([SPEC])
        load(source(directory, memory_directory=str(left_behind)), target, name="ipc", version=2)
        assert bytes(target.readable("w")) == B["w"][1]
        assert names_in(left_behind) == segments_of(directory)


@pytest.mark.processes
def test_a_trainer_of_another_directory_removes_it_and_all_of_it_once_its_metas_are_gone(
    directory, left_behind, tmp_path
):
    named = segments_of(directory)
    with SharedTensors(tmp_path / "other", memory_directory=str(left_behind)) as shared:
        assert names_in(left_behind) == named
        shared.publish(1, {0: A})
        assert named < names_in(left_behind)
        (directory / "ipc_metas_0").unlink()
        shared.publish(2, {0: B})
        assert named.isdisjoint(names_in(left_behind))


@pytest.mark.processes
def test_what_a_living_trainer_owns_or_another_namespace_knows_is_never_removed(
    directory, left_behind, tmp_path, monkeypatch
):
    named = segments_of(directory)
    with SharedTensors(tmp_path / "living", memory_directory=str(left_behind)) as living:
        for version in (1, 2):
            living.publish(version, {0: A})
        owned = names_in(left_behind) - named
        assert len(owned) == 2
        (tmp_path / "living" / "ipc_metas_0").unlink()
        assert remove_abandoned(str(left_behind)) == ()
        assert owned <= names_in(left_behind)
        monkeypatch.setattr(abandoned, "_namespace", lambda: "mnt:[1]")
        (directory / "ipc_metas_0").unlink()
        assert remove_abandoned(str(left_behind)) == ()
        monkeypatch.undo()
        assert set(remove_abandoned(str(left_behind))) == named


@pytest.mark.processes
@pytest.mark.needs("root")
def test_what_another_user_s_dead_trainer_left_is_never_removed(directory, left_behind):
    (directory / "ipc_metas_0").unlink()
    for path in left_behind.iterdir():
        os.chown(path, ANOTHER_USER, ANOTHER_USER)
    before = names_in(left_behind)
    assert remove_abandoned(str(left_behind)) == ()
    assert names_in(left_behind) == before


def test_two_trainers_do_not_share_one_directory(directory, trainer):
    with raising(errors.PublisherBusyError, match=str(directory)):
        SharedTensors(directory)


def test_no_room_is_an_error_before_anything_is_visible_and_the_old_version_stays(directory, trainer):
    trainer.publish(1, {0: A})
    huge = TensorSpec("w", "U8", (1 << 50,))

    class Endless:
        """Claims to be large; nobody can hold that much to hand over."""

    with raising("sharing-refused", match="--shm-size"):
        OwnedSegment("wsm-test-no-room.", huge.nbytes)
    assert not list(private_directory().glob("wsm-test-no-room.*"))
    with raising(errors.trainer_tensor):
        trainer.publish(2, {0: {"w": Endless()}})
    load(source(directory), MemoryTarget([SPEC]), name="ipc", version=1)


def test_a_publication_that_is_given_up_leaves_the_version_before(directory, trainer):
    trainer.publish(1, {0: A})

    def give_up(_):
        raise KeyboardInterrupt

    for version in range(2, 5):
        with pytest.raises(KeyboardInterrupt):
            trainer.publish(version, {0: B}, progress=give_up)
    target = MemoryTarget([SPEC])
    assert load(source(directory), target, name="ipc").version == "1"
    assert bytes(target.readable("w")) == A["w"][1]
    assert trainer.publish(5, {0: C}).created_bytes == 0


def loaded_by(directory, rank, version):
    target = MemoryTarget([SPEC])
    where = IpcSource(directory, rank, device_id=rank, world_size=2, adopt=False)
    load(where, target, name="ipc", version=version)
    return bytes(target.readable("w"))


def test_a_publication_that_reaches_a_part_of_the_ranks_is_taken_back(directory, trainer):
    trainer.publish(1, {0: A, 1: A})
    second = directory / "ipc_metas_1"
    second.unlink()
    second.mkdir()  # nothing can be renamed to it
    with raising(errors.StorageError, match="ipc_metas_1"):
        trainer.publish(2, {0: B, 1: B})
    assert loaded_by(directory, 0, 1) == A["w"][1]
    second.rmdir()
    trainer.publish(3, {0: C, 1: C})
    assert [loaded_by(directory, rank, 3) for rank in (0, 1)] == [C["w"][1]] * 2


def test_what_a_killed_trainer_left_beside_its_files_is_removed_and_nothing_else(directory, trainer):
    left, others = directory / ".ipc_metas_0.0123abcd", directory / ".ipc_metas_0.backup"
    for file in (left, others):
        file.touch()
    trainer.publish(1, {0: A})
    assert (left.exists(), others.exists()) == (False, True)


def test_a_trainer_that_died_between_two_ranks_files_is_seen_by_both_versions(directory, trainer):
    trainer.publish(1, {0: A, 1: A})
    old = (directory / "ipc_metas_1").read_bytes()
    trainer.publish(2, {0: B, 1: B})
    (directory / "ipc_metas_1").write_bytes(old)
    for rank, asked in ((0, 1), (1, 2)):
        with raising(
            errors.mixed_parts, match=r"ipc_metas_0: 2, .*ipc_metas_1: 1\); publish the snapshot again"
        ):
            loaded_by(directory, rank, asked)
    with raising(errors.VersionMismatchError):
        trainer.publish(3, {0: C, 1: C})
        loaded_by(directory, 0, 4)


def test_memory_that_a_metas_file_still_names_is_not_written_over(directory, trainer, monkeypatch):
    """Neither the second rank's file could be written, nor the first one's put back."""
    trainer.publish(1, {0: A, 1: A})
    written = []

    def failing(path, content, **options):
        written.append(path)
        if len(written) > 1:
            raise OSError("no space left")
        replace_file(path, content, **options)

    monkeypatch.setattr(shared_tensors, "replace_file", failing)
    with raising(errors.StorageError, match="ipc_metas_1: no space left; version 2 can be loaded"):
        trainer.publish(2, {0: B, 1: B})
    with raising(errors.StorageError, match="ipc_metas_0: no space left; nothing was published"):
        trainer.publish(3, {0: C, 1: C})  # it writes its memory, and no metas
    assert loaded_by(directory, 0, 2) == B["w"][1]
    assert loaded_by(directory, 1, 1) == A["w"][1]
    monkeypatch.undo()
    trainer.publish(4, {0: C, 1: C})
    assert [loaded_by(directory, rank, 4) for rank in (0, 1)] == [C["w"][1]] * 2


def test_ranks_that_a_smaller_publication_does_not_have_find_nothing(directory, trainer):
    trainer.publish(1, {0: A, 1: A})
    trainer.publish(2, {0: B})
    with raising("metas-not-found"):
        loaded_by(directory, 1, 1)


@pytest.mark.parametrize("ranks", [[], [1], [0, 2]])
def test_shards_that_are_not_one_per_rank_are_refused(trainer, ranks):
    with raising(errors.incomplete_publication):
        trainer.publish(1, dict.fromkeys(ranks, A))


def test_a_withdrawn_version_is_gone(directory, trainer):
    trainer.publish(1, {0: A})
    trainer.withdraw()
    with raising("metas-not-found"):
        load(source(directory), MemoryTarget([SPEC]), name="ipc")


def test_shared_memory_that_vanished_is_named(directory, trainer):
    trainer.publish(1, {0: A})
    (name,) = segments_of(directory)
    (private_directory() / name).unlink()
    with raising(share_errors.shared_memory_gone, match=name):
        load(source(directory), MemoryTarget([SPEC]), name="ipc")


def test_a_link_in_the_place_of_shared_memory_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with raising("foreign-segment", match="symbolic link"):
        AttachedSegment("link", 1, prefixes=("li",), referrer="metas", directory=str(tmp_path))


def test_a_reader_meets_no_half_written_memory():
    segment = OwnedSegment("wsm-test.", 64)
    try:
        assert segment.begin_writing()
        with raising(share_errors.shared_memory_busy):
            AttachedSegment(segment.name, 64, prefixes=("wsm-test.",), referrer="metas")
        segment.end_writing()
        reader = AttachedSegment(segment.name, 64, prefixes=("wsm-test.",), referrer="metas")
        assert not segment.begin_writing()
        reader.close()
        assert segment.begin_writing()
    finally:
        segment.close()


def test_a_lease_lasts_as_long_as_the_last_view_of_the_memory():
    segment = OwnedSegment("wsm-test.", 4096)
    try:
        reader = AttachedSegment(segment.name, 4096, prefixes=("wsm-test.",), referrer="metas")
        view = reader.memory(64, 64)
        reader.close()
        assert segment.leased()
        assert bytes(view) == bytes(64)
        del view
        assert not segment.leased()
    finally:
        segment.close()


@pytest.mark.processes
def test_sweeping_spares_what_has_an_owner_and_leaves_readers_their_memory():
    program = (
        "import os, signal; from wsm.strategies.ipc.shared_segment import OwnedSegment;"
        "print(OwnedSegment('wsm-test-dead.', 64).name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    dead = done.stdout.strip()
    living = OwnedSegment("wsm-test-dead.", 64)
    try:
        reader = AttachedSegment(dead, 64, prefixes=("wsm-test-dead.",), referrer="test")
        assert not reader.owned()
        assert sweep("wsm-test-dead.", needed=lambda name, _: name == dead) == ()
        assert sweep("wsm-test-dead.") == (dead,)
        assert bytes(reader.memory(0, 64)) == bytes(64)
        reader.close()
        assert (private_directory() / living.name).exists()
    finally:
        living.close()


# -- the metas file: what is written is read, and whatever else is there is a typed error ----------------


SPECS = (TensorSpec("a", "F32", (5,)), TensorSpec("b", "BF16", (3, 2)), TensorSpec("c", "I64", ()))
TENSORS = [PromisedTensor(spec, digest_of(spec.name.encode())) for spec in SPECS]
PLACES = tuple(TensorPlace("wsm-ipc.x", 64 * index) for index, _ in enumerate(SPECS))


def metas(**changes):
    group = (shard_digest((spec, digest) for spec, digest, _ in TENSORS), digest_of(b"rank 1"))
    fields = {
        "version": "3",
        "rank": 0,
        "world_size": 2,
        "publication": "p",
        "group": group,
        "segments": {"wsm-ipc.x": 192},
        "places": PLACES,
    }
    return IpcMetas.with_tensors(TENSORS, **{**fields, **changes})


def test_a_meta_has_the_seven_fields_of_fastdeploy():
    assert TensorMeta(SPECS[1], "wsm-ipc.x", 64).fields() == ["wsm-ipc.x", 64, 12, 16, [3, 2], [], -1]


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_every_dtype_survives_as_a_number(dtype):
    meta = TensorMeta(TensorSpec("t", dtype, (2, 3)), "segment", 0)
    assert TensorMeta.of_fields("t", meta.fields(), file="f") == meta
    empty = TensorMeta(TensorSpec("t", "BF16", (0, 4)), "segment", 0)
    assert TensorMeta.of_fields("t", empty.fields(), file="f") == empty


@pytest.mark.paddle
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bool", "BOOL"),
        ("uint8", "U8"),
        ("int8", "I8"),
        ("int16", "I16"),
        ("int32", "I32"),
        ("int64", "I64"),
        ("float16", "F16"),
        ("bfloat16", "BF16"),
        ("float32", "F32"),
        ("float64", "F64"),
    ],
)
def test_the_numbers_are_those_of_paddle(dtype, name):
    import paddle  # noqa: PLC0415 - a second of import time, for this test alone

    tensor = paddle.zeros([2, 3], "float32").astype(dtype)
    holder = tensor.value().get_tensor()
    theirs = holder._share_filename(False)
    ours = TensorMeta(TensorSpec("t", name, (2, 3)), "segment", 0).fields()
    assert list(theirs[2:6]) == ours[2:6]


def test_device_memory_is_named_by_a_handle_and_belongs_to_no_segment():
    place = TensorPlace("\x00\xff" * 32, 512, device=3)
    read = IpcMetas.decode(metas(places=(place, *PLACES[1:])).encode(), file="f")
    assert read.metas[0] == TensorMeta(SPECS[0], *place)
    assert read.metas[0].device != HOST


WRONG_FIELDS = {
    "too few fields": (lambda fields: fields[:6], "length 7"),
    "no list": (lambda fields: "meta", "Expected `array`"),
    "no handle": (lambda fields: ["", *fields[1:]], "$[0]"),
    "negative offset": (lambda fields: [fields[0], -1, *fields[2:]], "$[1]"),
    "size that dims do not take": (lambda fields: [*fields[:2], 21, *fields[3:]], "has 21 bytes"),
    "type of no dtype": (lambda fields: [*fields[:3], 14, *fields[4:]], "the type 14"),
    "true for a type": (lambda fields: [*fields[:3], True, *fields[4:]], "$[3]"),
    "dims that are none": (lambda fields: [*fields[:4], [-5], *fields[5:]], "$[4]"),
    "levels of detail": (lambda fields: [*fields[:5], [[0, 2]], fields[6]], "no dense tensor"),
    "device that is none": (lambda fields: [*fields[:6], -2], "$[6]"),
}


@pytest.mark.parametrize("wrong", WRONG_FIELDS)
def test_fields_that_are_no_tensor_are_refused_by_name(wrong):
    change, problem = WRONG_FIELDS[wrong]
    with pytest.raises(ManifestError, match="'a'") as caught:
        TensorMeta.of_fields("a", change(TensorMeta(SPECS[0], *PLACES[0]).fields()), file="the file")
    assert problem in str(caught.value)
    assert caught.value.file == "the file"


WRONG_PLACES = {
    "no handle": ("", 0, HOST),
    "negative offset": ("wsm-ipc.x", -1, HOST),
    "device that is none": ("wsm-ipc.x", 0, -2),
    "outside of its segment": ("wsm-ipc.x", 180, HOST),
    "another segment": ("other", 0, HOST),
}


@pytest.mark.parametrize("wrong", WRONG_PLACES)
def test_a_place_that_is_none_is_refused(wrong):
    fields = json.loads(metas().encode())
    fields["places"][0] = WRONG_PLACES[wrong]
    with pytest.raises(ManifestError) as caught:
        IpcMetas.decode(seal(fields), file="the file")
    assert ("'a' lies outside of its segment" in str(caught.value)) is ("segment" in wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 2},
        {"group": ["x"]},
        {"group": [digest_of(b"other"), digest_of(b"rank 1")]},
        {"tensors": []},
        {"tensors": [["a", 0, "no digest"], ["b", 1, "no digest"], ["c", 2, "no digest"]]},
        {"segments": {"../x": 192}},
        {"places": []},
        {"version": -1},
        {"layout": 1},
        {"format": "wsm.shard-manifest"},
    ],
    ids=str,
)
def test_metas_that_contradict_themselves_are_refused(changes):
    fields = {**json.loads(metas().encode()), **changes}
    with pytest.raises(ManifestError):
        IpcMetas.decode(seal(fields), file="f")
