from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.raising import raising
from wsm.strategies import ShardManifest, TensorSpec, VersionManifest, errors, with_manifest
from wsm.strategies.delta._manifest import DeltaManifest, DeltaShard, DeltaTensor
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.ipc.metas import IpcMetas
from wsm.strategies.promise import PromisedTensor, name_digest, seal, table_of, unseal
from wsm.strategies.snapshot.manifest import PartEntry, ShardEntry
from wsm.strategies.snapshot.placement import AxisSegment, Member, Replicated, Split
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest

DIGEST = digest_of(b"x")


def shard(**changes) -> ShardManifest:
    fields = {
        "version": "3",
        "rank": 0,
        "world_size": 2,
        "device_id": 0,
        "publication": "p",
        "parts": (PartEntry("a.pdparams", 10, 1), PartEntry("b.pdparams", 20, 3)),
        **table_of(
            (
                PromisedTensor(
                    TensorSpec("x", "BF16", (2, 3)), DIGEST, Split(1, (AxisSegment(4, 2), AxisSegment(2)))
                ),
                PromisedTensor(TensorSpec("y", "F32", ()), DIGEST, Replicated()),
                PromisedTensor(TensorSpec("z", "F32", ()), DIGEST, Member(0, 2)),
                PromisedTensor(TensorSpec("not placed", "F32", ()), DIGEST),
            )
        ),
    }
    return ShardManifest(**{**fields, **changes})


ENTRY = ShardEntry(manifest="a.manifest.json", seal=DIGEST, content_digest=DIGEST)


def version(shards: tuple[ShardEntry, ...]) -> VersionManifest:
    return VersionManifest(version="3", publication="p", shards=shards)


def fields_of(manifest) -> dict:
    return json.loads(manifest.encode())


def sealed(fields: dict) -> bytes:
    return seal({key: value for key, value in fields.items() if key != "digest"})


def test_a_manifest_that_says_its_version_as_a_number_is_read_as_the_text_and_keeps_its_digest():
    older = sealed({**fields_of(shard()), "version": 3})
    read = ShardManifest.decode(older, file="m")
    assert (read.version, read.seal) == ("3", json.loads(older)["digest"])
    whole = version((ENTRY,))
    older = sealed({**fields_of(whole), "version": 3})
    read = VersionManifest.decode(older, file="m")
    assert (read.version, read.ordinal, read.seal) == ("3", 0, json.loads(older)["digest"])


def test_equal_manifests_have_equal_bytes_and_digests():
    assert shard().encode() == shard().encode()
    assert fields_of(shard())["digest"] == shard().seal
    assert shard().seal != shard(publication="q").seal
    assert shard().placed_digest == shard(publication="q").placed_digest != shard().content_digest
    assert shard().content_digest == shard(publication="q").content_digest


def test_the_digest_of_a_shard_depends_on_every_fact_and_on_no_order():
    tensors = [(TensorSpec("a", "F32", (2,)), DIGEST), (TensorSpec("b", "F32", (2,)), digest_of(b"y"))]
    digest = shard_digest(tensors)
    assert shard_digest(tensors[::-1]) == digest
    for name, dtype, shape, content in [
        ("c", "F32", (2,), b"x"),
        ("a", "I32", (2,), b"x"),
        ("a", "F32", (2, 1), b"x"),
        ("a", "F32", (2,), b"z"),
    ]:
        assert shard_digest([(TensorSpec(name, dtype, shape), digest_of(content)), tensors[1]]) != digest


def test_what_stands_for_the_digest_of_a_group_differs_with_all_that_names_it():
    named = [("3", "p", 2), ("4", "p", 2), ("3", "q", 2), ("3", "p", 4)]
    assert len({name_digest(*each) for each in named}) == len(named)


def test_the_digest_of_a_group_covers_what_is_loaded_and_neither_files_nor_publication():
    def group(label="3", **changes):
        one = shard(**changes)
        entry = ShardEntry(
            manifest="m", seal=one.seal, content_digest=one.content_digest, placed_digest=one.placed_digest
        )
        return VersionManifest(version=label, publication=one.publication, shards=(entry,)).group_digest

    def rows(index, **changes):
        tensors = list(shard().tensors)
        tensors[index] = tensors[index]._replace(**changes)
        return table_of(tensors)

    same = group()
    elsewhere = (PartEntry("c.pdparams", 30, 4),)
    assert group(publication="q", parts=elsewhere, device_id=5, finite=True) == same
    assert group(**table_of(shard().tensors[::-1])) == same
    digests = {same, group("4")}
    digests |= {
        group(**rows(1, **change))
        for change in (
            {"spec": TensorSpec("other", "F32", ())},
            {"spec": TensorSpec("y", "I32", ())},
            {"spec": TensorSpec("y", "F32", (1,))},
            {"digest": digest_of(b"y")},
            {"placement": Member(0, 2)},
            {"placement": None},
        )
    }
    assert len(digests) == 8


def test_an_edited_manifest_is_found_by_its_seal():
    data = shard().encode().replace(b'"version":"3"', b'"version":"4"')
    with pytest.raises(errors.ManifestError, match="damaged or edited"):
        ShardManifest.decode(data, file="m")


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"{]", b"[" * 200_000], ids=["nothing", "no text", "no JSON", "deep"]
)
def test_what_is_no_json_is_no_manifest(data):
    with pytest.raises(errors.ManifestError, match="it is not JSON"):
        ShardManifest.decode(data, file="m")


def test_another_layout_is_refused_and_says_so():
    with pytest.raises(errors.ManifestError, match="layout is not 2"):
        ShardManifest.decode(sealed({**fields_of(shard()), "layout": 1}), file="m")


def test_true_is_no_layout_although_it_equals_one():
    with pytest.raises(errors.ManifestError, match="layout is not 1"):
        unseal(seal({"format": "f", "layout": True}), file="m", form="f", layout=1)


def test_one_kind_of_manifest_is_not_taken_for_the_other():
    with pytest.raises(errors.ManifestError, match="format is not"):
        VersionManifest.decode(shard().encode(), file="m")


ROWS = fields_of(shard())["tensors"]
PART = fields_of(shard())["parts"][0]
KIND = fields_of(shard())["kinds"][0]


def kind(**changes) -> dict:
    """A manifest of one tensor whose kind is changed."""
    return {
        "kinds": [{**KIND, **changes}],
        "tensors": ROWS[:1],
        "parts": [PART],
    }


def placed(**fields) -> dict:
    return kind(placement=fields)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": -1}, "version"),
        ({"version": "a/b"}, "version"),
        ({"rank": 2}, "rank 2 of 2"),
        ({"publication": "\ud800"}, "surrogate"),
        ({"parts": [{"file": "../a", "bytes": 1, "tensors": 4}]}, "file"),
        ({"parts": [{"file": "a\0", "bytes": 1, "tensors": 4}]}, "file"),
        ({"parts": [PART, {**PART, "tensors": 3}]}, "a part twice"),
        ({"parts": []}, "hold 0 tensors"),
        ({"parts": [PART]}, "hold 1 tensors"),
        ({"tensors": []}, "no tensor"),
        ({"tensors": [ROWS[0], ROWS[0], *ROWS[2:]]}, "a tensor twice"),
        ({"tensors": [*ROWS[:3], ["\ud800", 0, DIGEST]]}, "surrogate"),
        ({"tensors": [*ROWS[:3], ["a", 4, DIGEST]]}, "a kind that is not listed"),
        ({"tensors": [*ROWS[:3], ["a", -1, DIGEST]]}, r"tensors\[3\]\[1\]"),
        ({"tensors": [*ROWS[:3], ["a", 0, "00"]]}, "a tensor has no digest"),
        ({"tensors": [*ROWS[:3], ["a", 0, DIGEST[:-1] + "X"]]}, "a tensor has no digest"),
        (kind(dtype="F4"), "dtype"),
        (kind(shape=[-1]), "shape"),
        (kind(shape=[1] * 65), "shape"),
        (placed(how="member", index=1, of=2), "nothing"),
        (placed(how="member", index=2, of=2), "is member 2 of 2"),
        (placed(how="member", index=0, of=0), "is member 0 of 0"),
        (placed(how="member", index=0, of=3), "2 ranks cannot share"),
        (placed(how="split", axis=1, segments=[]), "is split along axis 1"),
        (placed(how="split", axis=2, segments=[{"extent": 6}]), "is split along axis 2"),
        (placed(how="split", axis=1, segments=[{"extent": 8}]), r"gives rank 0 of 2 the shape \[2, 4\]"),
        (placed(how="split", axis=1, segments=[{"extent": 5}]), "2 ranks cannot share"),
        (placed(how="split", axis=1, segments=[{"extent": 6, "heads": 3}]), "2 ranks cannot share"),
        (placed(how="split", axis=1, segments=[{"extent": 6, "heads": 0}]), "0 heads"),
        *[({"finite": said}, "finite") for said in (None, 1, "yes", False)],
        ({"stranger": 1}, "unknown field `stranger`"),
        ({"content_digest": DIGEST}, "content_digest"),
    ],
)
def test_a_sealed_manifest_that_makes_no_sense_is_refused(change, problem):
    with pytest.raises(errors.ManifestError, match=problem):
        ShardManifest.decode(sealed({**fields_of(shard()), **change}), file="m")


def test_a_version_without_shards_makes_no_sense():
    with pytest.raises(errors.ManifestError, match="no shard"):
        VersionManifest.decode(version(()).encode(), file="m")


def documents():
    """One of every kind of sealed document, and how it is read."""
    spec = TensorSpec("x", "F32", ())
    row = DeltaTensor("x", "F32", (), DIGEST, DIGEST, DIGEST, ())
    whose = {"version": "3", "rank": 0, "world_size": 1, "publication": "p"}
    delta = DeltaShard(**whose, base_version="2", block_bytes=4096, nbytes=0, tensors=(row,))
    whole = version((ENTRY,))
    metas = IpcMetas(**whose, kinds=(), rows=(), group=(shard_digest([]),), segments={}, places=())
    stream = StreamManifest.with_tensors([PromisedTensor(spec, DIGEST)], **whose)
    for document in (shard(), whole, delta, DeltaManifest.of([delta]), metas, stream):
        yield pytest.param(document, id=type(document).__name__)


@pytest.mark.parametrize("document", list(documents()))
def test_a_field_that_is_not_known_is_refused_in_every_kind_of_document(document):
    assert type(document).decode(document.encode(), file="m") == document
    with pytest.raises(errors.ManifestError, match="hopes"):
        type(document).decode(sealed({**fields_of(document), "hopes": 1}), file="m")


# -- what a stream promises, and what all ranks of one publication have in common ------------------------


STATE = {
    "a": (TensorSpec("a", "F32", (2, 3)), bytes(24)),
    "b": (TensorSpec("b", "BF16", ()), b"ab"),
}
WRITTEN = bytes(with_manifest(STATE, version=7, rank=1, world_size=2, publication="p")[MANIFEST_TENSOR])


def test_a_whole_model_is_every_rank_s():
    data = bytes(with_manifest(STATE, version=7)[MANIFEST_TENSOR])
    manifest = StreamManifest.decode(data, file="the trainer")
    assert manifest.whole
    assert not StreamManifest.decode(WRITTEN, file="the trainer").whole


def manifest_of(state, **options):
    data = bytes(with_manifest(state, version=7, **options)[MANIFEST_TENSOR])
    return StreamManifest.decode(data, file="the trainer")


@pytest.mark.parametrize("options", [{}, {"rank": 0, "world_size": 1}], ids=["whole model", "one rank"])
def test_two_different_states_of_one_version_have_two_group_digests(options):
    spec, data = STATE["a"]
    other = manifest_of({**STATE, "a": (spec, bytes([data[0] ^ 1, *data[1:]]))}, **options)
    assert other.group_digest != manifest_of(STATE, **options).group_digest
    assert manifest_of(STATE, **options).group_digest is not None
    assert manifest_of(STATE, **options, publication="again").group_digest == manifest_of(STATE).group_digest


def test_shards_of_one_version_have_one_group_digest_iff_they_are_of_one_publication():
    first, second, later = (
        manifest_of(STATE, rank=rank, world_size=2, publication=publication).group_digest
        for rank, publication in ((0, "p"), (1, "p"), (1, "q"))
    )
    assert first == second != later


def test_a_shard_of_several_needs_its_publication_s_name_and_speaks_for_itself_without_one():
    with raising(errors.incomplete_publication, match=r"rank 1 of 2 needs the publication's name"):
        with_manifest(STATE, version=7, rank=1, world_size=2)
    unnamed = replace(manifest_of(STATE, rank=1, world_size=2, publication="p"), publication="")
    assert unnamed.group_digest is None  # of an older trainer


@pytest.mark.parametrize(("rank", "world_size"), [(1, None), (None, 2)])
def test_a_rank_without_a_world_or_a_world_without_a_rank_cannot_be_written(rank, world_size):
    with raising(errors.trainer_tensor):
        with_manifest(STATE, version=7, rank=rank, world_size=world_size)
