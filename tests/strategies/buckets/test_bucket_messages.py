"""Messages about buckets, and their layout: what is said is heard; whatever else comes is a typed error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labels import labels
from wsm.strategies.buckets import _bucket_messages as say
from wsm.strategies.buckets._bucket_plan import ALIGNMENT, plan_buckets
from wsm.strategies.digest import digest_of
from wsm.strategies.messages import message_types
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

counts = st.integers(0, (1 << 63) - 1)
digests = st.binary(max_size=4).map(digest_of)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
specs = st.builds(
    TensorSpec,
    texts,
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 30), max_size=3).map(tuple),
)
tensors = st.lists(specs, max_size=5, unique_by=lambda spec: spec.name).map(tuple)
versions = labels()
ranks = st.integers(1, 1000)

MESSAGES = {
    say.Hello: st.builds(say.Hello, counts, st.none() | ranks, st.none() | versions, st.booleans()),
    say.Init: st.builds(
        say.Init,
        versions,
        counts,
        ranks,
        texts.filter(bool),
        st.sampled_from(["wsm-buckets.x", "ä"]),
        st.integers(1, 1 << 40).map(lambda count: count * ALIGNMENT),
        st.integers(1, 1 << 40).map(lambda count: count * ALIGNMENT),
        tensors,
    ),
    say.Ready: st.just(say.Ready()),
    say.Bucket: st.builds(say.Bucket, counts, st.lists(digests, max_size=4).map(tuple)),
    say.Ack: st.builds(say.Ack, counts),
    say.End: st.builds(say.End, counts, digests),
    say.Done: st.builds(say.Done, digests),
    say.Abort: st.builds(
        say.Abort, st.sampled_from(say.REASONS), texts, texts, st.none() | counts | versions
    ),
}
messages = st.one_of(*MESSAGES.values())
sessions = st.integers(0, (1 << 64) - 1)


def heard(data: bytes) -> tuple[int, say.Message]:
    return say.from_bytes(data, peer="the other side")


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(st.data())
def test_what_is_said_is_heard(kind, data):
    message, session = data.draw(MESSAGES[kind]), data.draw(sessions)
    assert heard(say.to_bytes(message, session)) == (session, message)


@given(messages, sessions, st.data())
def test_no_change_on_the_way_is_taken_for_a_message(message, session, data):
    content = bytearray(say.to_bytes(message, session))
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "overwrite"]))
    position = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        content[position] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del content[position:]
    elif kind == "grow":
        content += data.draw(st.binary(min_size=1, max_size=9))
    else:
        content[position : position + 4] = data.draw(st.binary(max_size=4))
    if bytes(content) == say.to_bytes(message, session):
        return
    with pytest.raises(PeerMessageError, match="the other side sent an unusable message"):
        heard(bytes(content))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error(data):
    with pytest.raises(PeerMessageError):
        heard(data)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(messages, _json, st.data())
def test_a_wrong_field_in_a_right_envelope_is_an_error_or_a_message(message, value, data):
    frame = message_types.decode(say.to_bytes(message, 7), peer="p")
    fields = dict(frame.fields)
    if fields:
        fields[data.draw(st.sampled_from(sorted(fields)))] = value
    with contextlib.suppress(PeerMessageError):
        assert isinstance(
            heard(message_types.encode(message_types.Frame(frame.kind, 7, fields)))[1], type(message)
        )


def init(**changes: object) -> say.Init:
    fields = {
        "version": "1",
        "rank": 0,
        "world_size": 2,
        "publication": "p",
        "segment": "s",
        "window_bytes": 128,
        "bucket_bytes": 64,
        "tensors": (TensorSpec("a", "F32", (2,)),),
    }
    return say.Init(**{**fields, **changes})


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (init(tensors=(TensorSpec("a", "F32", (1 << 59,)),)), "more than 131072 buckets of 64 bytes"),
        (init(tensors=(TensorSpec("a", "U8", ((64 << 17) + 1,)),)), "not be smaller than 128 bytes"),
        (init(tensors=(TensorSpec("a", "F32", (1 << 62,)),)), "tensors of its Init is wrong"),
        (init(tensors=(TensorSpec("a", "U8", ()), TensorSpec("a", "U8", ()))), "lists 'a' twice"),
        (init(bucket_bytes=63), "bucket_bytes of its Init"),
        (init(bucket_bytes=0), "bucket_bytes of its Init"),
        (init(window_bytes=0), "window_bytes of its Init"),
        (init(window_bytes=100), "window_bytes of its Init"),
        (init(segment="../x"), "segment of its Init"),
        (init(publication=""), "publication of its Init"),
        (init(segment=""), "segment of its Init"),
        (init(version=None), "which version"),
        (init(world_size=None), "how many ranks"),
        (say.Hello(-1, None, None, look=False), "rank of its Hello"),
        (say.Bucket(0, ("not a digest",)), "digests of its Bucket"),
        (say.Abort("boredom", "", ""), "reason of its Abort"),
    ],
    ids=str,
)
def test_a_message_that_nobody_could_follow_is_refused(message, problem):
    with pytest.raises(PeerMessageError, match=problem) as caught:
        heard(say.to_bytes(message, 1))
    assert caught.value.peer == "the other side"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"magic": b"HTTP"}, "begins with b'HTTP'"),
        ({"protocol": 9}, f"speaks protocol 9, we speak {message_types.PROTOCOL}"),
        ({"kind": 99}, "its kind is 99"),
        ({"reserved": 1}, "damaged"),
    ],
    ids=str,
)
def test_the_envelope_says_what_is_wrong_with_it(monkeypatch, change, problem):
    body = json.dumps({"index": 3}).encode()
    parts = {
        "magic": message_types.MAGIC,
        "protocol": message_types.PROTOCOL,
        "kind": 5,
        "reserved": 0,
        **change,
    }
    head = message_types._HEAD.pack(*parts.values(), len(body), 1)
    with pytest.raises(PeerMessageError, match=problem):
        heard(head + bytes.fromhex(digest_of(head + body)) + body)


def test_fields_that_are_unknown_or_missing_are_named():
    for fields in ({}, {"index": 1, "more": 2}):
        with pytest.raises(PeerMessageError, match=r"a Ack has the fields \['index'\]"):
            heard(message_types.encode(message_types.Frame(5, 1, fields)))


def test_every_message_has_a_test_and_a_number():
    assert set(MESSAGES) == set(say._KINDS.values())
    assert sorted(say._KINDS) == list(range(1, len(MESSAGES) + 1))
    assert all(dataclasses.is_dataclass(kind) for kind in MESSAGES)


@given(st.lists(st.integers(0, 2000), max_size=20), st.integers(1, 8))
def test_buckets_hold_every_byte_once_in_order_and_no_bucket_is_overfull(sizes, lines):
    bucket_bytes = lines * ALIGNMENT
    buckets = plan_buckets([TensorSpec(str(i), "U8", (n,)) for i, n in enumerate(sizes)], bucket_bytes)
    pieces = [piece for bucket in buckets for piece in bucket]
    covered = [(piece.tensor, byte) for piece in pieces for byte in range(piece.begin, piece.end)]
    assert covered == [(index, byte) for index, size in enumerate(sizes) for byte in range(size)]
    assert all(piece.place % ALIGNMENT == 0 and piece.nbytes for piece in pieces)
    assert all(
        0 <= after.place - before.place - before.nbytes < ALIGNMENT for before, after in pairwise(pieces)
    )
    for bucket in buckets:
        assert bucket
        assert bucket[-1].place + bucket[-1].nbytes - bucket[0].place <= bucket_bytes
    for (
        piece
    ) in pieces:  # a large tensor is cut at multiples of the bucket, so that a reader can compute where
        assert piece.begin % bucket_bytes == 0
        assert piece.nbytes == min(bucket_bytes, sizes[piece.tensor] - piece.begin)


def test_as_many_buckets_as_may_be_are_taken_and_a_tensor_each_besides():
    tensors = (TensorSpec("a", "U8", (64 << 17,)), *(TensorSpec(str(i), "U8", ()) for i in range(9)))
    for some in (tensors[:1], tensors[1:]):
        assert heard(say.to_bytes(init(tensors=some), 1))[1].tensors == some
    assert len(plan_buckets(tensors, 64)) == (1 << 17) + len(tensors) - 1


def test_what_is_refused_for_its_size_of_buckets_is_taken_at_the_size_that_the_error_names():
    tensors = (TensorSpec("a", "U8", (12345678901,)), TensorSpec("b", "F32", (3, 5)))
    with pytest.raises(PeerMessageError) as caught:
        heard(say.to_bytes(init(tensors=tensors), 1))
    (size,) = re.findall(r"smaller than (\d+) bytes", str(caught.value))
    assert heard(say.to_bytes(init(tensors=tensors, bucket_bytes=int(size)), 1))[1].tensors == tensors
