"""The formats that are sealed JSON documents: manifests of shards, versions, deltas and streams, and metas.

Fuzzed is the JSON; it is sealed anew, its content digests made right where that can be done, so that the
checks behind the seal are reached. The bare documents, seal and all, are fuzzed as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fuzz.invariant import Format
from wsm.strategies.adopt.record import AdoptedContent, AdoptionRecord
from wsm.strategies.delta._blocks import Block, BlockKind
from wsm.strategies.delta._manifest import DeltaManifest, DeltaShard, DeltaTensor
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.ipc.metas import IpcMetas, TensorPlace
from wsm.strategies.promise import PromisedTensor, seal, table_of
from wsm.strategies.snapshot.manifest import PartEntry, ShardEntry, ShardManifest, VersionManifest
from wsm.strategies.snapshot.placement import AxisSegment, Member, Placement, Replicated, Split
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.transports.stream_manifest import StreamManifest

_DIGEST = digest_of(b"x")
_SPECS = (TensorSpec("a", "F32", (2, 4)), TensorSpec("b", "BF16", (3,)), TensorSpec("c", "I64", ()))


def sealed_formats() -> list[Format]:
    """Return two formats per kind of document: sealed anew, and as they lie in a file."""
    found = []
    for name, kind, sample, digests in (
        ("shard manifest", ShardManifest, _shard(), _digests_of_shard),
        ("version manifest", VersionManifest, _version(), _no_digests),
        ("ipc metas", IpcMetas, _metas(), _no_digests),
        ("delta shard", DeltaShard, _delta(), _digests_of_delta),
        ("delta manifest", DeltaManifest, DeltaManifest.of([_delta()]), _no_digests),
        ("stream manifest", StreamManifest, _stream(), _digests_of_shard),
        ("adoptions", AdoptionRecord, _adoptions(), _no_digests),
    ):
        form = Format(
            name=name,
            reader=kind.decode,
            decode=partial(kind.decode, file="fuzzed"),
            encode=kind.encode,
            samples=(_unsealed(sample.encode()),),
            dress=partial(_dress, digests=digests),
        )
        found += [form, replace(form, name=f"{name}, bare", samples=(sample.encode(),), dress=bytes)]
    return found


def _shard() -> ShardManifest:
    placements: tuple[Placement, ...] = (
        Split(1, (AxisSegment(8, 2), AxisSegment(8))),
        Replicated(),
        Member(1, 2),
    )
    specs = (TensorSpec("a", "F32", (2, 8)), *_SPECS[1:])
    return ShardManifest(
        version="a-3",
        rank=1,
        world_size=2,
        device_id=1,
        publication="p",
        parts=(PartEntry("x", 90, 2), PartEntry("y", 80, 1)),
        **table_of(
            PromisedTensor(spec, _DIGEST, placement)
            for spec, placement in zip(specs, placements, strict=True)
        ),
    )


def _version() -> VersionManifest:
    shard = ShardEntry(manifest="m", seal=_DIGEST, content_digest=_DIGEST, placed_digest=_DIGEST)
    return VersionManifest(version="3", publication="p", shards=(shard,) * 2)


def _metas() -> IpcMetas:
    return IpcMetas.with_tensors(
        [PromisedTensor(spec, _DIGEST) for spec in _SPECS],
        version="3",
        rank=0,
        world_size=2,
        publication="p",
        group=(shard_digest((spec, _DIGEST) for spec in _SPECS), _DIGEST),
        segments={"wsm-ipc.x": 192},
        places=tuple(TensorPlace("wsm-ipc.x", 64 * index) for index, _ in enumerate(_SPECS)),
    )


def _delta() -> DeltaShard:
    def row(spec: TensorSpec, base: str, stored: str, blocks: tuple[Block, ...]) -> DeltaTensor:
        return DeltaTensor(spec.name, spec.dtype, spec.shape, base, _DIGEST, stored, blocks)

    return DeltaShard(
        version="4",
        base_version="3",
        rank=0,
        world_size=1,
        publication="p",
        block_bytes=1 << 16,
        nbytes=32,
        tensors=(
            row(_SPECS[0], digest_of(b"y"), _DIGEST, (Block(BlockKind.FULL, 32, 32),)),
            *(row(spec, _DIGEST, digest_of(b""), ()) for spec in _SPECS[1:]),
        ),
    )


def _stream() -> StreamManifest:
    tensors = [PromisedTensor(spec, _DIGEST) for spec in _SPECS]
    return StreamManifest.with_tensors(tensors, version="3", rank=0, world_size=1, publication="p")


def _adoptions() -> AdoptionRecord:
    return AdoptionRecord(
        adopted=(AdoptedContent("7", "7", _DIGEST, (3, 4)), AdoptedContent("7.reused-1", "7", _DIGEST, ()))
    )


def _unsealed(document: bytes) -> bytes:
    fields = json.loads(document)
    del fields["digest"]
    return json.dumps(fields).encode()


def _dress(drawn: bytes, digests: Callable[[dict[str, Any]], dict[str, str]]) -> bytes:
    """Seal what is a JSON object; leave the rest as it is."""
    try:
        fields = json.loads(drawn)
    except (ValueError, RecursionError):
        return drawn
    if not isinstance(fields, dict):
        return drawn
    with suppress(Exception):  # fields that make no sense have no digest; the reader must say so
        fields.update(digests(fields))
    fields.pop("digest", None)
    try:
        return seal(fields)
    except (ValueError, RecursionError):  # what json reads and cannot write, such as huge integers
        return drawn


def _no_digests(_: dict[str, Any]) -> dict[str, str]:
    return {}


def _digests_of_shard(fields: dict[str, Any]) -> dict[str, str]:
    kinds = fields["kinds"]
    rows = [
        (TensorSpec(name, kinds[kind]["dtype"], tuple(kinds[kind]["shape"])), digest)
        for name, kind, digest in fields["tensors"]
    ]
    return {"content_digest": shard_digest(rows)}


def _digests_of_delta(fields: dict[str, Any]) -> dict[str, str]:
    return {
        field: shard_digest((_spec(row), row[digest]) for row in fields["tensors"])
        for field, digest in (("base_digest", "base_digest"), ("content_digest", "digest"))
    }


def _spec(row: dict[str, Any]) -> TensorSpec:
    return TensorSpec(row["name"], row["dtype"], tuple(row["shape"]))
