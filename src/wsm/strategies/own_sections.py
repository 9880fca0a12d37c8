"""The sections of ``wsm.yaml`` that wsm's own strategies read: each is named here, and nowhere else.

A strategy declares the types of its sections. One that stands here has its name from here; one that does not
is the strategy's own, and is called as the strategy is.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field

from wsm.strategies.buckets.source import IpcAsyncConfig
from wsm.strategies.delta.source import DeltaConfig
from wsm.strategies.ipc.source import IpcConfig
from wsm.strategies.mooncake.configured import MooncakeConfig
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.strategies.strategy import Strategy
from wsm.strategies.transports.configured import RsyncConfig


@dataclass(frozen=True, kw_only=True)
class OwnSections:
    """What a configuration says to wsm's own strategies.

    Parameters
    ----------
    snapshot : SnapshotConfig
        For ``ipc_snapshot``.
    ipc : IpcConfig
        For ``ipc``.
    ipc_async : IpcAsyncConfig
        For ``ipc_async``, which needs its address.
    rsync : RsyncConfig
        For ``rsync`` and ``gdr``.
    delta : DeltaConfig
        For ``delta``.
    mooncake : MooncakeConfig
        For ``rsync`` and ``gdr`` over the transport ``mooncake``, which needs its address.
    """

    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    ipc: IpcConfig = field(default_factory=IpcConfig)
    ipc_async: IpcAsyncConfig = field(default_factory=IpcAsyncConfig)
    rsync: RsyncConfig = field(default_factory=RsyncConfig)
    delta: DeltaConfig = field(default_factory=DeltaConfig)
    mooncake: MooncakeConfig = field(default_factory=MooncakeConfig)


#: The type of each, by its name.
OWN_SECTIONS: Mapping[str, type] = typing.get_type_hints(OwnSections)


def sections_read(name: str, strategy: Strategy) -> dict[str, type]:
    """Return the sections that the strategy called `name` reads: their types, by their names."""
    names = {kind: key for key, kind in OWN_SECTIONS.items()}
    return {names.get(kind, name): kind for kind in strategy.sections}
