"""What rank and publisher say to each other over Mooncake's control connection, and what they plan by it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import select
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.raising import raising
from wsm.strategies.conversation import listen
from wsm.strategies.digest import digest_of
from wsm.strategies.mooncake import _lease_messages as say
from wsm.strategies.mooncake import publisher as publisher_module
from wsm.strategies.mooncake._lease_messages import MemoryRegion
from wsm.strategies.mooncake.mooncake_transport import RankLease, ReadPlan
from wsm.strategies.mooncake.publisher import (
    LeaseServer,
    PlacedShard,
    ServedPublication,
    grants_of,
    merged,
)
from wsm.strategies.mooncake.source import EngineSettings
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.peer_errors import PeerFailedError, peer_message
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.tensor import TensorSpec
from wsm.typed import bad_keyword

DIGEST = "0123456789abcdef" * 2
SPECS = (TensorSpec("a", "F32", (10, 5)), TensorSpec("empty", "I64", (0, 3)))
SHARD = PlacedShard(
    tuple(PromisedTensor(spec, DIGEST) for spec in SPECS), (MemoryRegion(4096, 1000),), ((0, 0),) * 2
)
GRANT = grants_of("step_7", {0: SHARD, 1: SHARD}, publisher=DIGEST, session="127.0.0.1:15000")[1]


def heard(data: bytes) -> object:
    length, frame = data[: say.LENGTH_BYTES], data[say.LENGTH_BYTES :]
    assert say.frame_bytes(length, say.MOST_TO_RANK, "p") == len(frame)
    return say.ask_of(frame) if b'"ask"' in frame else say.answer_of(frame, "p")


def changed(**fields: object) -> say.Grant:
    return replace(GRANT, **fields)


def promised(**fields: object) -> say.Grant:
    return changed(promise=replace(GRANT.promise, **fields))


@pytest.mark.parametrize(
    ("grant", "problem"),
    [
        (changed(regions=(MemoryRegion(4096, 199),)), "puts 'a' outside"),
        (changed(regions=()), "puts 'a' outside"),
        (promised(rows=GRANT.promise.rows[:1] * 2), "twice: 'a'"),
        (changed(places=((0, 0),)), "2 tensors and 1 places"),
        (promised(rank=2), "rank 2 of 2"),
        (promised(publication="another"), "another publication"),
        (changed(publication=replace(GRANT.publication, shards=GRANT.publication.shards[:1])), "lists 1"),
        (promised(rows=tuple((name, kind, "0" * 32) for name, kind, _ in GRANT.promise.rows)), "add up"),
        (promised(version=None), "version"),
        (changed(session="evil.example:1"), "session"),
    ],
)
def test_a_grant_whose_fields_do_not_fit_each_other_is_refused(grant, problem):
    with raising(peer_message, match=problem):
        say.check_grant(heard(say.to_bytes(grant)), "p")


@pytest.mark.parametrize(
    "address", ["", "tcp://localhost:1", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "ipc://x"]
)
def test_an_address_that_cannot_be_is_refused(address):
    with raising("bad-engine-settings", match="neither"):
        say.place_of(address)


@pytest.mark.parametrize(("field", "value"), [("host", "localhost"), ("host", ""), ("protocol", "smoke")])
def test_engine_settings_that_cannot_be_are_refused(field, value):
    with raising(bad_keyword, match=field):
        EngineSettings(**{field: value})


def test_memory_that_overlaps_or_touches_becomes_one_region():
    assert merged([(100, 50), (0, 10), (150, 5), (120, 10), (200, 0)]) == [(0, 10), (100, 55)]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(1, 40))
def test_a_plan_reads_every_byte_of_every_region_exactly_once(sizes, span_bytes):
    regions = [MemoryRegion(1000 * number, size) for number, size in enumerate(sizes)]
    plan = ReadPlan(regions, span_bytes)
    spans = [plan.span(index) for index in range(plan.spans)]
    assert all(0 < span.nbytes <= span_bytes for span in spans)
    read = [span.address + byte for span in spans for byte in range(span.nbytes)]
    assert read == [region.address + byte for region in regions for byte in range(region.nbytes)]
    for number, region in enumerate(regions):
        for byte in range(region.nbytes):
            index, place = plan.where(number, byte)
            assert spans[index].address + place == region.address + byte


@pytest.fixture
def server(tmp_path):
    specs = [TensorSpec(f"{number}.{'w' * 100}", "U8", (1,)) for number in range(20_000)]
    tensors = tuple(PromisedTensor(spec, digest_of(b"")) for spec in specs)
    shard = PlacedShard(tensors, (MemoryRegion(0, len(specs)),), ((0, 0),) * len(specs))
    server = LeaseServer(listen(tmp_path / "p"), lease_s=60.0)
    grants = grants_of("1", {0: shard}, publisher="0" * 32, session="127.0.0.1:15000")
    server.put(ServedPublication("1", grants))
    yield server
    server.close()


def test_who_asks_and_takes_no_answer_fills_no_memory_of_the_publisher(tmp_path, server, monkeypatch):
    monkeypatch.setattr(publisher_module, "_SILENCE_S", 600.0)  # none is cut off on busy cores meanwhile
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            silent.connect(f"{tmp_path}/p")
            silent.sendall(say.to_bytes(say.Ask(0, 1, "1", look=False)))
            assert select.select([silent], [], [], 60)[0]
        with contextlib.closing(RankLease(f"ipc://{tmp_path}/p", UNOBSERVED, silence_s=60)) as rank:
            assert len(rank.ask(say.Ask(0, 1, "1", look=True), 60).promise.rows) == 20_000
        held = [writer.transport.get_write_buffer_size() for writer in list(server._connections)]
        assert 0 < max(held) <= 96 << 10


def test_a_publisher_has_as_many_connections_as_it_may_and_the_oldest_that_reads_nothing_makes_room(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12, 12))
    listening = listen(tmp_path / "q")
    server = LeaseServer(listening, lease_s=60.0)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        made = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(4)]
        for each in made:
            each.connect(f"{tmp_path}/q")
        assert made[0].recv(1) == b""
        assert not select.select(made[1:], [], [], 0.1)[0]


@pytest.mark.slow
def test_a_connection_that_fails_as_it_is_taken_keeps_no_rank_from_the_publisher(
    tmp_path, server, monkeypatch
):
    connect, failed = asyncio.open_connection, []

    async def fails_once(**options):
        if not failed:
            failed.append("no room")
            raise OSError(*failed)
        return await connect(**options)

    monkeypatch.setattr(asyncio, "open_connection", fails_once)
    with contextlib.closing(RankLease(f"ipc://{tmp_path}/p", UNOBSERVED, silence_s=60)) as rank:
        assert rank.ask(say.Ask(0, 1, "1", look=True), 60).promise.version == "1"
    assert failed


@pytest.mark.slow
def test_revoking_waits_for_no_rank_even_if_none_of_them_reads(tmp_path, server):
    with contextlib.ExitStack() as stack:
        ranks = [RankLease(f"ipc://{tmp_path}/p", UNOBSERVED, silence_s=60) for _ in range(3)]
        for rank in ranks:
            stack.callback(rank.close)
            rank.ask(say.Ask(0, 1, "1", look=False), 60)
        assert server.wait_until_free(0) == [0]
        begun_s = time.monotonic()
        server.revoke("the trainer needs its memory")
        assert time.monotonic() - begun_s < 5
        assert server.wait_until_free(0) == []
        for rank in ranks:
            with pytest.raises(PeerFailedError, match="the trainer needs its memory"):
                rank.keep(60)
