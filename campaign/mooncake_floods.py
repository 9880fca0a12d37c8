"""Plays cases in which a peer floods or lies while ranks read a version from a trainer over Mooncake.

The engine is the real one, on this host, over TCP; where it cannot be loaded there are no such cases. A
stranger floods the publisher, or asks for leases that it never gives back; a flood comes from where the
publisher should be; or the publisher grants what is not there, or not what it says. What must hold is what
:mod:`campaign.floods` holds trainers' streams to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from campaign.case import Case
from campaign.flooding_peer import MOONCAKE_KINDS
from campaign.floods import SHAPES, hold_out
from campaign.group import GroupUnderFault
from campaign.played_config import shards_of
from campaign.result import Result
from wsm.strategies import MooncakePublisher
from wsm.strategies.conversation import listen
from wsm.strategies.digest import digest_of
from wsm.strategies.mooncake._lease_messages import Grant, MemoryRegion, place_of
from wsm.strategies.mooncake.publisher import (
    LeaseServer,
    PlacedShard,
    PublishedMemory,
    ServedPublication,
    grants_of,
)
from wsm.strategies.mooncake.source import EngineSettings
from wsm.strategies.mooncake.transfer_engine import Engine
from wsm.strategies.promise import PromisedShard

_LEASE_S = 2.0

#: What a rank that is told to load hears in the place of a publisher.
_IN_ITS_PLACE = ("small messages", "large messages", "endless bodies", "no messages", "connections", "asks")


def _each(said: ServedPublication, change: Callable[[Grant], Grant]) -> ServedPublication:
    return ServedPublication(said.version, {rank: change(grant) for rank, grant in said.grants.items()})


def _relaid(said: ServedPublication, move: Callable[[MemoryRegion], MemoryRegion]) -> ServedPublication:
    return _each(said, lambda grant: replace(grant, regions=tuple(map(move, grant.regions))))


def _false_digests(said: ServedPublication) -> ServedPublication:
    lie = digest_of(b"something else")
    placed = {
        rank: PlacedShard(
            tuple(tensor._replace(digest=lie) for tensor in grant.promise.tensors),
            grant.regions,
            grant.places,
        )
        for rank, grant in said.grants.items()
    }
    first = said.grants[0]
    grants = grants_of(said.version, placed, publisher=first.publisher, session=first.session)
    return ServedPublication(said.version, grants)


def _another_group(grant: Grant) -> Grant:
    shards = (PromisedShard(content_digest=digest_of(b"")), *grant.publication.shards[1:])
    return replace(grant, publication=replace(grant.publication, shards=shards))


#: What a publisher may say of what it has published.
_CLAIMS: dict[str, Callable[[ServedPublication], ServedPublication]] = {
    "false digests": _false_digests,
    "memory of no owner": lambda said: _relaid(said, lambda each: each._replace(address=4096)),
    "memory beyond": lambda said: _relaid(said, lambda each: each._replace(address=each.address + (1 << 40))),
    "another group": lambda said: _each(said, _another_group),
}
#: Other lies: an engine that is not there, and a lease that is taken back.
_OTHER_LIES = ("another engine", "revoked")


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases; none where the engine cannot be loaded."""
    try:
        from mooncake.engine import TransferEngine  # noqa: F401, PLC0415 - native, and may lack libraries
    except (ImportError, OSError):
        return []
    said = [f"stranger:{each}" for each in MOONCAKE_KINDS]
    said += [f"instead:{each}" for each in _IN_ITS_PLACE]
    said += [f"trainer:{each}" for each in (*SHAPES, *_CLAIMS, *_OTHER_LIES)]
    return [Case(kind, ranks, "mooncake", each.replace(" ", "-")) for each in said]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case, on a group of its own that reads versions over Mooncake."""
    hold_out(case, group, result, arrives="mooncake", publishes=_published, speaks=("--mooncake",))


def _published(group: GroupUnderFault, ask: Callable[[], Any], said: str) -> Any:
    """Publish the newest version, or a lie about it, while the group is asked for it."""
    if said:
        with _lying(group, said):
            return ask()
    with MooncakePublisher(group.trainer_address, lease_s=_LEASE_S) as publisher:
        publisher.publish(group.published, shards_of(group.config, group.published))
        return ask()


@contextlib.contextmanager
def _lying(group: GroupUnderFault, said: str) -> Iterator[None]:
    """Publish version 2 with one lie while the block lasts."""
    shards = shards_of(group.config, 2)
    if said in SHAPES:
        SHAPES[said](shards)
    with contextlib.ExitStack() as stack:
        listening = listen(place_of(group.trainer_address))
        engine = Engine(EngineSettings())
        stack.callback(engine.close)
        memory = PublishedMemory(engine)
        server = LeaseServer(listening, lease_s=_LEASE_S)
        stack.callback(memory.close)
        stack.callback(server.close)
        placed = memory.place(shards, finite=False)
        version = "3" if said == "another version" else "2"
        session = "127.0.0.1:9" if said == "another engine" else engine.session
        grants = grants_of(version, placed, publisher=digest_of(b"a liar"), session=session)
        publication = ServedPublication(version, grants)
        server.put(_CLAIMS[said](publication) if said in _CLAIMS else publication)
        if said == "revoked":
            revoke = server.revoke
            server.put(ServedPublication(version, _Revoking(publication.grants, revoke)))
        yield


class _Revoking(dict[int, Any]):
    """The grants of a publication; each lease is taken back as soon as it was granted."""

    def __init__(self, grants: Any, revoke: Callable[[str], None]) -> None:
        super().__init__(grants)
        self._revoke = revoke

    def __getitem__(self, rank: int) -> Any:
        self._revoke("the trainer goes on")
        return super().__getitem__(rank)
