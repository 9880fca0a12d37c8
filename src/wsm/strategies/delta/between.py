"""The delta between two versions that are published already, put beside them.

For a directory whose publisher knows no deltas: what it publishes whole is made smaller for those who come
from the version before. Announces nothing, since both versions are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from wsm.clock import Clock, SystemClock
from wsm.labels import checked_version
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta._blocks import BLOCK_BYTES
from wsm.strategies.delta._manifest import DeltaShard
from wsm.strategies.delta._route import places, whole_offer
from wsm.strategies.delta._writer import DeltaPlan, StagedDelta, write_delta
from wsm.strategies.delta.publish import CROSSOVER, DeltaReport
from wsm.strategies.delta.source import DeltaSource
from wsm.strategies.delta.strategy import published_tensors
from wsm.strategies.files.snapshot_names import DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.offer import Offer
from wsm.strategies.snapshot.store import shards_in
from wsm.strategies.trainer.retention import KEEP_TWO, Retention
from wsm.typed import Count, typed

_NANOSECONDS = 1_000_000_000


@typed
def delta_between(
    directory: Path | str,
    base_version: str | int,
    version: str | int,
    *,
    crossover: Annotated[float, Meta(ge=0)] = CROSSOVER,
    block_bytes: Count = BLOCK_BYTES,
    retain: Retention = KEEP_TWO,
    replace: bool = False,
    durable: bool = True,
    clock: Clock | None = None,
) -> DeltaReport:
    """Make the delta from `base_version` to `version`, which are both published in `directory`. Blocks.

    Parameters
    ----------
    directory : path or str
        Holds `version` whole, and `base_version` whole or as deltas on a whole one.
    base_version, version : str or int
        From which version to which it leads.
    crossover : float
        Nothing is written if the delta would be larger than this part of the whole version.
    block_bytes, retain, replace, durable, clock
        As for :func:`wsm.strategies.publish_delta`.

    Returns
    -------
    DeltaReport
        Its ``whole`` is ``size`` if nothing was written.

    Raises
    ------
    wsm.errors.WsmError
        As a load of either version, and as :func:`wsm.strategies.publish_delta`. Nothing became visible.
    """
    clock = clock or SystemClock()
    begun = clock.monotonic_ns()
    version, base_version = checked_version(version), checked_version(base_version)
    sources = [
        DeltaSource(directory, rank, device_id=device) for rank, device in shards_in(Path(directory), version)
    ]
    with StagedDelta(directory, version, durable=durable) as staged, ExitStack() as stack:
        plan = DeltaPlan(
            version, base_version, 0, len(sources), staged.publication, block_bytes, durable=durable
        )
        offers = [_whole(source, version, stack) for source in sources]
        # What was promised of the whole version is promised of what leads to it.
        promised = all(tensor.finite for offer in offers for tensor in offer.tensors)
        plan = dataclasses.replace(plan, finite=promised)
        shards = [
            _write(staged.path, offer, source, plan) for source, offer in zip(sources, offers, strict=True)
        ]
        small = _stored(shards) <= crossover * sum(offer.nbytes or 0 for offer in offers)
        if small:
            manifest, retired = staged.commit(shards, announce=False, replace=replace, retain=retain)
            digest: str = manifest.digest
        else:
            digest, retired = offers[0].manifest_digest or "", ()
    return DeltaReport.of(
        shards,
        path=f"{directory}/{DELTAS_DIRECTORY if small else VERSIONS_DIRECTORY}/{version}",
        whole=None if small else "size",
        manifest_digest=digest,
        seconds=(clock.monotonic_ns() - begun) / _NANOSECONDS,
        retired=retired,
    )


def _whole(source: DeltaSource, version: str, stack: ExitStack) -> Offer:
    offer = whole_offer(source, version, stack)
    if offer is None:
        raise delta_errors.delta_not_found(
            version=version, rank=source.rank, looked_at=places(source, version)[1:]
        )
    return offer


def _write(path: Path, offer: Offer, source: DeltaSource, plan: DeltaPlan) -> DeltaShard:
    tensors = tuple(offer.tensors)
    with ExitStack() as stack:
        base = published_tensors(source, plan.base_version, stack)
        specs = [tensor.spec for tensor in tensors]
        return write_delta(path, specs, tensors, base, dataclasses.replace(plan, rank=source.rank))


def _stored(shards: Sequence[DeltaShard]) -> int:
    return sum(shard.nbytes for shard in shards)
