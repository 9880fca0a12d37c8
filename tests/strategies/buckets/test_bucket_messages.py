"""Messages between a trainer and a rank: heard as they were said, or refused; and how buckets are cut."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raising
from wsm.strategies import TensorSpec
from wsm.strategies.buckets import wire
from wsm.strategies.conversation import Abort, frame_of
from wsm.strategies.digest import digest_of
from wsm.strategies.peer_errors import peer_message

DIGEST = "0" * 32
OFFER = wire.Init("7", 0, 2, "p", f"{wire.SEGMENT_PREFIX}{'0' * 16}", 64, 2, False, (("a", "U8", (3,)),))
FROM_RANK = (
    wire.Hello(0, 2, "7", look=False),
    wire.Hello(0, None, None, look=True),
    wire.Ready(),
    wire.Ack(3),
    wire.Done(4, DIGEST),
    Abort("failed", "OSError", "no memory \ud800 today".encode(errors="replace").decode()),
)
FROM_TRAINER = (
    OFFER,
    wire.Bucket(0, (("a", "U8", (3,), 0, DIGEST),)),
    wire.End(DIGEST),
    Abort("version", "version-mismatch", "another", "8"),
    Abort("world_size", "shard-identity", "another", 4),
)


@pytest.mark.parametrize(
    ("reader", "message"),
    [(wire.from_rank, each) for each in FROM_RANK] + [(wire.from_trainer, each) for each in FROM_TRAINER],
    ids=lambda value: type(value).__name__,
)
def test_what_is_said_is_heard_and_no_change_on_the_way_is_taken_for_a_message(reader, message):
    frame = frame_of(message)
    assert reader(frame, "a peer") == message
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with raising(peer_message):
            reader(bytes(changed), "a peer")
    for length in range(len(frame)):
        with raising(peer_message):
            reader(frame[:length], "a peer")


def framed(fields: object) -> bytes:
    body = json.dumps(fields).encode()
    return bytes.fromhex(digest_of(body)) + body


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "latest version"},
        {"rank": -1},
        {"world_size": 0},
        {"segment": "../elsewhere"},
        {"segment": "wsm.another-group"},
        {"segment": f"wsm-buckets.{'0' * 16}\n"},
        {"bucket_bytes": 65},
        {"bucket_bytes": 1 << 50},
        {"slots": 0},
        {"tensors": [["a", "U8", [1 << 63]]]},
        {"more": 1},
    ],
    ids=str,
)
def test_an_offer_that_nobody_could_follow_is_refused(wrong):
    fields = {**msgspec.json.decode(frame_of(OFFER)[16:]), **wrong}
    with raising(peer_message):
        wire.from_trainer(framed(fields), "a peer")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ((("a", "U9", (3,)),), "U9"),
        ((("a", "U8", (1,) * 65),), "length <= 64"),
    ],
)
def test_tensors_that_cannot_be_are_refused(rows, problem):
    with raising(peer_message, match=problem):
        wire.from_trainer(frame_of(msgspec.structs.replace(OFFER, tensors=rows)), "a peer")


def test_nesting_without_end_is_refused():
    body = b'{"type":"hello","rank":' + b"[" * 100_000
    with raising(peer_message):
        wire.from_rank(bytes.fromhex(digest_of(body)) + body, "a peer")


@given(st.lists(st.integers(0, 2000), max_size=20), st.integers(1, 8))
def test_buckets_hold_every_byte_once_in_order_and_no_bucket_is_overfull(sizes, lines):
    bucket_bytes = lines * wire.ALIGNMENT
    buckets = list(wire.cut([TensorSpec(str(i), "U8", (n,)) for i, n in enumerate(sizes)], bucket_bytes))
    pieces = [piece for bucket in buckets for piece in bucket]
    covered = [(piece.tensor, byte) for piece in pieces for byte in range(piece.begin, piece.end)]
    assert covered == [(index, byte) for index, size in enumerate(sizes) for byte in range(size)]
    assert all(piece.offset % wire.ALIGNMENT == 0 for piece in pieces)
    for bucket in buckets:
        assert bucket
        end = 0
        for piece in bucket:
            assert piece.offset >= end
            end = piece.offset + piece.end - piece.begin
        assert end <= bucket_bytes
    for piece in pieces:  # a large tensor is cut at multiples of the bucket, so that a reader knows where
        assert piece.begin % bucket_bytes == 0
        assert piece.end - piece.begin == min(bucket_bytes, sizes[piece.tensor] - piece.begin)
