"""A model of two small tensors, and its shards: what the groups of these tests serve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from wsm.strategies import PublishReport, Retention, TensorSpec, publish_snapshot

SPECS = (TensorSpec("embed.weight", "F32", (16, 8)), TensorSpec("head.weight", "F32", (8, 16)))
RANKS = 2


def publish(
    directory: Path, version: int, *, ranks: int = RANKS, content: int | None = None, **options: Any
) -> PublishReport:
    """Publish a version whose bytes are its number, or `content`."""
    byte = bytes([(version if content is None else content) % 256])
    shard = {spec.name: (spec, byte * spec.nbytes) for spec in SPECS}
    return publish_snapshot(directory, version, dict.fromkeys(range(ranks), shard), durable=False, **options)


def publish_cut(directory: Path, version: int) -> None:
    """Publish a version whose files end in their middle, so that it is there and its load fails."""
    publish(directory, version, replace=True, retain=Retention(keep=9))
    for part in (directory / "versions" / str(version)).glob("*.pdparams"):
        os.truncate(part, part.stat().st_size // 2)
