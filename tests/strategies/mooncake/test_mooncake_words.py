"""What rank and publisher say to each other over Mooncake's control connection, and what they plan by it."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raising
from wsm.clock import SystemClock
from wsm.strategies.digest import digest_of
from wsm.strategies.messages import message_types as bucket_frames
from wsm.strategies.messages.caller import Caller
from wsm.strategies.messages.errors import PeerMessageError
from wsm.strategies.mooncake import _lease_messages as lease_messages
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake import errors as mooncake_errors
from wsm.strategies.mooncake._lease_messages import parse_address
from wsm.strategies.mooncake._lease_server import Leases, LeaseServer, ServedPublication
from wsm.strategies.mooncake._read_plan import MemoryRegion, Placed, ReadPlan, TransferLayout
from wsm.strategies.mooncake.publisher import merged
from wsm.strategies.mooncake.transfer_engine import EngineSettings
from wsm.strategies.tensor import TensorSpec

DIGEST = "0123456789abcdef" * 2
LAYOUT = TransferLayout(
    (MemoryRegion(4096, 1000),),
    (Placed(TensorSpec("a", "F32", (10, 5)), 0, 0), Placed(TensorSpec("empty", "I64", (0, 3)), 0, 0)),
)
GRANT = say.Grant(
    "step_7", 1, 2, DIGEST, "127.0.0.1:15000", 500, LAYOUT.digest(), LAYOUT, (DIGEST,) * 2, (DIGEST,) * 2
)
MESSAGES = [
    say.Ask(0, None, None, True, None),
    say.Ask(3, 8, "12", False, DIGEST),
    GRANT,
    dataclasses.replace(GRANT, layout=None),
    say.Renew(),
    say.Held(),
    say.Release("", ""),
    say.Released(True),
    say.Refuse("version", "another one", "3"),
    say.Refuse("world_size", "other ranks", 3),
    say.Revoked("the trainer goes on"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_said_is_what_is_heard(message):
    assert say.from_bytes(say.to_bytes(message), peer="p") == message


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_an_error_that_names_the_peer(data):
    with pytest.raises(PeerMessageError, match="nobody in particular"):
        say.from_bytes(data, peer="nobody in particular")


@given(st.data())
def test_a_message_with_any_other_field_is_an_error_or_a_message(data):
    message = data.draw(st.sampled_from(MESSAGES))
    frame = bucket_frames.decode(say.to_bytes(message), peer="p")
    if not frame.fields:
        return
    name = data.draw(st.sampled_from(sorted(frame.fields)))
    value = data.draw(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(DIGEST),
            lambda inner: (
                st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
            ),
        )
    )
    changed = bucket_frames.encode(bucket_frames.Frame(frame.kind, 0, {**frame.fields, name: value}))
    try:
        heard = say.from_bytes(changed, peer="p")
    except PeerMessageError:
        return
    assert isinstance(heard, type(message))


def changed_grant(**layout: object) -> say.Grant:
    return dataclasses.replace(GRANT, layout=dataclasses.replace(LAYOUT, **layout))


@pytest.mark.parametrize(
    ("grant", "problem"),
    [
        (changed_grant(regions=(MemoryRegion(4096, 199),)), "puts 'a' outside"),
        (changed_grant(regions=()), "puts 'a' outside"),
        (changed_grant(tensors=(LAYOUT.tensors[0],) * 2), "lists 'a' twice"),
        (changed_grant(tensors=LAYOUT.tensors[:1]), "1 tensors and 2 digests"),
        (dataclasses.replace(GRANT, rank=2), "rank 2 of 2"),
        (dataclasses.replace(GRANT, shards=(DIGEST,)), "lists 1"),
        (dataclasses.replace(GRANT, version=None), "which version"),
        (dataclasses.replace(GRANT, session="evil.example:1"), "field session"),
        (dataclasses.replace(GRANT, lease_ms=0), "field lease_ms"),
    ],
)
def test_a_grant_whose_fields_do_not_fit_each_other_is_refused(grant, problem):
    with pytest.raises(PeerMessageError, match=problem):
        say.from_bytes(say.to_bytes(grant), peer="p")


@pytest.mark.parametrize(
    "address", ["", "tcp://localhost:1", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "ipc://x"]
)
def test_an_address_that_cannot_be_is_refused(address):
    with raising(mooncake_errors.bad_engine_settings, match="neither"):
        parse_address(address)


@pytest.mark.parametrize(("field", "value"), [("host", "localhost"), ("host", ""), ("protocol", "smoke")])
def test_engine_settings_that_cannot_be_are_refused(field, value):
    with raising(mooncake_errors.bad_engine_settings, match=field):
        EngineSettings(**{field: value})


def test_a_lease_holds_while_it_is_renewed_and_stays_over_once_it_ran_out():
    leases = Leases(2.0)
    first, second = leases.grant(0, now_s=10.0), leases.grant(1, now_s=10.0)
    assert leases.ranks(now_s=11.0) == [0, 1]
    assert leases.renew(first, now_s=11.5)
    assert leases.ranks(now_s=13.0) == [0]
    assert not leases.renew(second, now_s=13.0)
    leases.release(first)
    leases.release(first)
    assert leases.ranks(now_s=13.0) == []


def test_revoked_leases_are_over_at_once():
    leases = Leases(60.0)
    held = leases.grant(3, now_s=0.0)
    assert leases.revoke() == [held]
    assert not leases.holds(held, now_s=0.0)


def test_memory_that_overlaps_or_touches_becomes_one_region():
    assert merged([(100, 50), (0, 10), (150, 5), (120, 10), (200, 0)]) == [(0, 10), (100, 55)]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(1, 40))
def test_a_plan_reads_every_byte_of_every_region_exactly_once(sizes, span_bytes):
    regions = [MemoryRegion(1000 * number, size) for number, size in enumerate(sizes)]
    plan = ReadPlan(regions, span_bytes)
    assert all(0 < span.nbytes <= span_bytes for span in plan.spans)
    read = [span.address + byte for span in plan.spans for byte in range(span.nbytes)]
    assert read == [region.address + byte for region in regions for byte in range(region.nbytes)]
    for number, region in enumerate(regions):
        for byte in range(region.nbytes):
            index, place = plan.where(number, byte)
            assert plan.spans[index].address + place == region.address + byte


def test_revoking_waits_for_no_rank_even_if_none_of_them_reads(tmp_path):
    specs = [TensorSpec(f"{number}.{'w' * 100}", "U8", (1,)) for number in range(20_000)]
    layout = TransferLayout((MemoryRegion(0, len(specs)),), tuple(Placed(spec, 0, 0) for spec in specs))
    digests = (digest_of(b""),) * len(specs)
    listener = lease_messages.listen(f"ipc://{tmp_path}/p")
    server = LeaseServer(
        listener, publisher="0" * 32, session="127.0.0.1:15000", leases=Leases(60.0), clock=SystemClock()
    )
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        server.put(ServedPublication("1", {0: (layout, layout.digest(), digests)}, digests[:1]))
        for _ in range(3):
            rank = Caller(parse_address(listener.address), "the publisher")
            stack.callback(rank.close, flush=False)
            rank.send(say.to_bytes(say.Ask(0, 1, "1", look=False, known_layout=None)))
        while len(server._readers) < 3:
            time.sleep(0.001)
        begun_s = time.monotonic()
        server.revoke("the trainer needs its memory")
        assert time.monotonic() - begun_s < 5
        assert server.wait_until_free(0) == []
        heard = []
        while say.Revoked not in map(type, heard):
            assert rank.poll(60)
            heard.append(say.from_bytes(rank.receive(), peer="the publisher"))
