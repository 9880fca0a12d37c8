"""The metas file: what is written is read, and whatever else is there is a typed error."""

from __future__ import annotations

import json

import pytest

from wsm.strategies import TensorSpec
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.errors import ManifestError
from wsm.strategies.ipc.metas import HOST, IpcMetas, TensorMeta, TensorPlace
from wsm.strategies.promise import PromisedTensor, seal
from wsm.strategies.tensor import ITEM_BYTES

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
    "too few fields": (lambda fields: fields[:6], "7 fields"),
    "no list": (lambda fields: "meta", "7 fields"),
    "no handle": (lambda fields: ["", *fields[1:]], "no handle"),
    "negative offset": (lambda fields: [fields[0], -1, *fields[2:]], "no offset"),
    "size that dims do not take": (lambda fields: [*fields[:2], 21, *fields[3:]], "has 21 bytes"),
    "type of no dtype": (lambda fields: [*fields[:3], 14, *fields[4:]], "the type 14"),
    "true for a type": (lambda fields: [*fields[:3], True, *fields[4:]], "the type True"),
    "dims that are none": (lambda fields: [*fields[:4], [-5], *fields[5:]], "the dims"),
    "levels of detail": (lambda fields: [*fields[:5], [[0, 2]], fields[6]], "no dense tensor"),
    "device that is none": (lambda fields: [*fields[:6], -2], "the device -2"),
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
