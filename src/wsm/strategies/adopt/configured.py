"""What a group's configuration says of adopting: into which directory, for how many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wsm.errors import RefusedError
from wsm.strategies.adopt.adopt import AdoptSettings, AdoptWay, PlacementHook
from wsm.strategies.adopt.deciding import Relabel
from wsm.strategies.files.shard_source import ShardSource
from wsm.strategies.strategy import Sections, Strategy
from wsm.strategies.trainer.retention import KEEP_TWO, Retention
from wsm.strategies.training_names import TrainingNames
from wsm.strategies.transports.by_version import Gdr
from wsm.typed import Count, typed


@typed
def adopt_settings(
    strategy: Strategy,
    sections: Sections,
    ranks: Count,
    *,
    roots: Sequence[Path | str],
    way: AdoptWay = AdoptWay.LINK,
    relabel: Relabel = Relabel.MARK,
    placements: PlacementHook | None = None,
    names: TrainingNames | None = None,
    retain: Retention = KEEP_TWO,
) -> AdoptSettings:
    """Return how directories are adopted for a group.

    Parameters
    ----------
    strategy : Strategy
        By which the group loads.
    sections : Sections
        What its configuration says to that.
    ranks : int
        How many it has.
    roots, way, relabel, placements, names, retain
        As for :class:`wsm.strategies.adopt.adopt.AdoptSettings`.

    Raises
    ------
    RefusedError (``nothing-to-adopt-into``)
        If it loads no published files, and bytes are to be taken in; or if several groups share its files.
    """
    into = strategy.retired_from(sections)
    source = strategy.source(sections, 0, ranks) if into is not None else None
    shared = isinstance(source, ShardSource) and source.world_size is None
    if way is not AdoptWay.NONE and (into is None or shared):
        raise RefusedError(
            f"versions come by {type(strategy).__name__} here, which loads no files that could be adopted; "
            "name the version alone (--adopt none), or configure strategy: ipc_snapshot, or gdr with "
            "transport: files",
            code="nothing-to-adopt-into",
            strategy=type(strategy).__name__,
        )
    # With more ranks than one nothing is called after their devices.
    device_id = source.resolved_device_id() if ranks == 1 and isinstance(source, ShardSource) else 0
    return AdoptSettings(
        into=into or "",
        roots=roots,
        way=way,
        relabel=relabel,
        ranks=None if isinstance(strategy, Gdr) else ranks,
        placements=placements,
        names=names,
        device_id=device_id,
        retain=retain,
    )
