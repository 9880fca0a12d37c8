"""Versions for the ranks of :mod:`receiving_rank`, and such a rank in a thread of the test's own."""

from __future__ import annotations

from pathlib import Path

from receiving_rank import SPECS

from wsm.strategies import IpcAsyncSource, MemoryTarget, load
from wsm.strategies.digest import digest_of, shard_digest

BUCKET = 1 << 18
WINDOW = 1 << 19
PROGRAM = Path(__file__).parent / "receiving_rank.py"


def shard(version, rank):
    return {
        spec.name: (spec, bytes([version, rank, index]) * (spec.nbytes // 3) + b"\0" * (spec.nbytes % 3))
        for index, spec in enumerate(SPECS)
    }


def shards(version):
    return {rank: shard(version, rank) for rank in range(2)}


def digest_of_shard(version, rank):
    return shard_digest((spec, digest_of(data)) for spec, data in shard(version, rank).values())


def receive(sender, rank, version, **options):
    target = options.pop("target", None) or MemoryTarget(SPECS)
    source = IpcAsyncSource(sender.address, rank, world_size=2)
    report = load(source, target, name="ipc_async", version=version, **options)
    return report, {name: bytes(target.readable(name)) for name in target.specs()}


def send_to_both(sender, threads, version, **options):
    """Send a version to two ranks of this process, and see that both have it."""
    loads = [threads.submit(receive, sender, rank, version) for rank in range(2)]
    sent = sender.send(version, shards(version), **options)
    assert {rank: pending.result()[0].digest for rank, pending in enumerate(loads)} == sent.digests
    return sent
