"""What the campaign's groups are told, and what their versions consist of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.sharding import initial_state, shard
from wsm.strategies import Retention, publish_snapshot

#: A model of a few KiB; its shards fit both kinds of engines.
MODEL: dict[str, Any] = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 128}

#: Deaths are what the campaign is made of, so no keeper gives up; what hangs is replaced soon.
_RECOVERY = {
    "restarts": 1_000_000,
    "within_s": 60.0,
    "delay_s": 0.01,
    "longest_delay_s": 0.02,
    "rejoin_s": 10.0,
    "hung_s": 3.0,
    "restore_s": 30.0,
}

#: A case may publish several versions before the one that a replaced rank loads again has had its turn.
_RETAIN = Retention(keep=12)

#: How long a rank waits for a trainer that streams, in seconds.
_STREAM_S = 5.0

_numbers = iter(range(1 << 30))


def played_config(
    ranks: int,
    directory: Path,
    snapshots: Path,
    *,
    shut_down_groups: bool,
    journals: bool,
    cache_process: bool = False,
    arrives: str = "",
    trainer_address: str = "",
) -> RolloutConfig:
    """Return the configuration of a group of its own name, with everything it writes in `directory`."""
    name = f"campaign-{os.getpid()}-{next(_numbers)}"
    group = {
        "name": name,
        "ranks": ranks,
        "snapshot": {
            "directory": str(snapshots),
            "shared_directory": str(directory / "nowhere"),
        },
        "journal_directory": str(directory / "journals") if journals else None,
        "deadlines": {"drain_s": 2.0, "park_s": 10.0},
        "shut_down_groups": shut_down_groups,
        "kv_cache_process": cache_process,
    }
    # From a trainer at that address, and from no directory.
    section = {"address": trainer_address, "connect_s": _STREAM_S, "silence_s": _STREAM_S}
    if arrives == "ipc_async":
        group |= {"strategy": arrives, arrives: section}
    elif arrives == "mooncake":
        group |= {"strategy": "rsync", "rsync": {"transport": arrives}, arrives: section}
    return rollout_config_from_mapping({"group": group, "model": MODEL, "recovery": _RECOVERY})


def publish_version(directory: Path, config: RolloutConfig, version: int) -> None:
    """Publish the weights whose seed is the version's number, as a trainer would."""
    publish_snapshot(directory, version, shards_of(config, version), durable=False, retain=_RETAIN)


def shards_of(config: RolloutConfig, version: int) -> dict[int, dict[str, Any]]:
    """Return the tensors of a version, for every rank."""
    shape, ranks = config.engine.shape, config.group.ranks
    full = initial_state(shape, version)
    return {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
