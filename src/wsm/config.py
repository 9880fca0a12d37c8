"""What a group is told before it starts, read from ``wsm.yaml`` or built in code, checked whole.

Configuration that two ranks must share goes into :meth:`WsmConfig.group_digest`, which is compared
when a rank attaches; paths and deadlines may differ. This module opens one YAML file and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from wsm.config_reading import ConfigurationError, build, connected_parts, read_yaml
from wsm.strategies.delta.source import FALLBACKS
from wsm.strategies.source_config import (
    ORPHANS,
    DeltaConfig,
    IpcAsyncConfig,
    IpcConfig,
    MooncakeConfig,
    RsyncConfig,
)

__all__ = [
    "ENGINE_WORDS",
    "ConfigurationError",
    "Deadlines",
    "EngineWordsConfig",
    "SnapshotConfig",
    "WsmConfig",
    "config_from_mapping",
    "load_config",
]

#: FastDeploy's words, as the option ``answers`` names them.
ENGINE_WORDS = ("weights", "kv_cache", "prefix_tree")


@dataclass(frozen=True)
class Deadlines:
    """How long a rank waits before it reports, in seconds. A caller's own deadline comes on top.

    Parameters
    ----------
    attach_s : float
        For the group's segment to appear.
    arguments_s : float
        For a command's arguments to become readable after its word was seen.
    drain_s : float
        For running requests to finish under the drain policy.
    park_s : float
        For the other ranks to stand at the same step boundary.
    decision_s : float
        For the controller's decision; what expires is a report, the rank goes on waiting.
    action_s : mapping of str to float
        Per action name: for the action itself, and for the votes before a collective one, instead
        of its own deadline.
    """

    attach_s: float = 60.0
    arguments_s: float = 5.0
    drain_s: float = 300.0
    park_s: float = 30.0
    decision_s: float = 60.0
    action_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotConfig:
    """Where the ``ipc_snapshot`` strategy looks.

    Parameters
    ----------
    directory : str
        The model directory: parts, full files, ``versions/`` and ``version.yaml``.
    shared_directory : str
        The directory of last resort (FastDeploy: ``/shared_ipc_meta``).
    device_ids : sequence of int
        The device id in each rank's file names; empty: from the environment (``CUDA_VISIBLE_DEVICES`` and
        ``FLAGS_selected_gpus``), and the rank itself where there is neither.
    allow_pickle : bool
        Whether files in pickle format may be loaded, which runs code that they contain.
    readahead_bytes : int
        How far ahead of a load the kernel is asked to read, for files that are not in the page cache; 0
        leaves it to the kernel.
    """

    directory: str = "."
    shared_directory: str = "/shared_ipc_meta"
    device_ids: Sequence[int] = ()
    allow_pickle: bool = False
    readahead_bytes: int = 0


@dataclass(frozen=True)
class EngineWordsConfig:
    """FastDeploy's int32 words that an engine without wsm commands the group by.

    Parameters
    ----------
    suffixes : sequence of int or str
        One per data-parallel part: the engine worker queue port (FastDeploy's own choice of suffix).
    answers : sequence of str
        Which words wsm answers: ``weights``, and ``kv_cache`` and ``prefix_tree`` if nobody else does.
    deadline_s : float
        Seconds for one command, and for all data-parallel parts to ask for the same.
    """

    suffixes: Sequence[int | str] = ()
    answers: Sequence[str] = ENGINE_WORDS
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        """Check the names of the words.

        Raises
        ------
        ConfigurationError
            If one is unknown.
        """
        for name in self.answers:
            if name not in ENGINE_WORDS:
                raise ConfigurationError(
                    where="engine_words: answers",
                    problem=f"unknown word {name!r}",
                    fix=f"the words are {', '.join(ENGINE_WORDS)}",
                )


@dataclass(frozen=True)
class WsmConfig:
    """One group, as every process of it is told.

    Parameters
    ----------
    name : str
        The group's name; its segment is ``/dev/shm/wsm.NAME``.
    ranks : int
        Ranks that must switch weights together.
    run_id : str
        Names one start of the group; a worker refuses the segment of another. Empty: any.
    communicators : mapping of str to list of list of int
        Every communicator that a step uses, as lists of ranks; together they must connect all ranks.
        Empty: one communicator over all ranks.
    shut_down_groups : bool
        Whether a clear shuts down the process groups (--shutdown-comm-group-if-worker-idle).
    follow : bool
        Whether a rank may have to join a step that another one began while the group serves. False saves
        one load per peer and step where every rank's scheduler decides alike.
    kv_cache_process : bool
        Whether a process of its own holds KV cache for the ranks and takes part in every command, as a
        :class:`wsm.CacheParticipant`: the group waits for it as for a rank.
    strategy : str
        How weights arrive; a name in the registry of :mod:`wsm.strategies`.
    load_threads : int
        How many threads of a rank copy and digest; 0: two where there are two cores.
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
        For ``rsync`` over the transport ``mooncake``, which needs its address.
    deadlines : Deadlines
        What a rank waits for, and how long.
    journal_directory : str or None
        Where each rank appends its journal as NDJSON; None keeps it in memory only.
    engine_words : EngineWordsConfig
        FastDeploy's words; none by default.
    """

    name: str
    ranks: int
    run_id: str = ""
    communicators: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    shut_down_groups: bool = False
    follow: bool = True
    kv_cache_process: bool = False
    strategy: str = "ipc_snapshot"
    load_threads: int = 0
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    ipc: IpcConfig = field(default_factory=IpcConfig)
    ipc_async: IpcAsyncConfig = field(default_factory=IpcAsyncConfig)
    rsync: RsyncConfig = field(default_factory=RsyncConfig)
    delta: DeltaConfig = field(default_factory=DeltaConfig)
    mooncake: MooncakeConfig = field(default_factory=MooncakeConfig)
    deadlines: Deadlines = field(default_factory=Deadlines)
    journal_directory: str | None = None
    engine_words: EngineWordsConfig = field(default_factory=EngineWordsConfig)

    def __post_init__(self) -> None:
        """Check what no single field can.

        Raises
        ------
        ConfigurationError
            If the ranks are not one group.
        """
        if self.ranks < 1:
            raise ConfigurationError(where="ranks", problem=f"{self.ranks} ranks", fix="give at least 1")
        if self.load_threads < 0:
            raise ConfigurationError(
                where="load_threads", problem=f"is {self.load_threads}", fix="give 1 or more, or 0"
            )
        for section in ("snapshot", "ipc", "delta"):
            ids = getattr(self, section).device_ids
            if len(ids) not in (0, self.ranks):
                raise ConfigurationError(
                    where=f"{section}: device_ids",
                    problem=f"{len(ids)} ids for {self.ranks} ranks",
                    fix="give one per rank, or none",
                )
        if self.snapshot.readahead_bytes < 0:
            raise ConfigurationError(
                where="snapshot: readahead_bytes",
                problem=f"is {self.snapshot.readahead_bytes}",
                fix="give a number of bytes, or 0 to leave it to the kernel",
            )
        if self.ipc.orphans not in ORPHANS:
            raise ConfigurationError(
                where="ipc: orphans", problem=f"is {self.ipc.orphans!r}", fix="it must be copy or refuse"
            )
        if self.delta.fallback not in FALLBACKS or self.delta.max_chain < 1:
            raise ConfigurationError(
                where="delta: fallback and max_chain",
                problem=f"are {self.delta.fallback!r} and {self.delta.max_chain}",
                fix=f"fallback must be one of {', '.join(FALLBACKS)}, max_chain at least 1",
            )
        if self.strategy == "ipc_async" and not self.ipc_async.address:
            raise ConfigurationError(
                where="ipc_async: address",
                problem="is missing",
                fix="give the trainer's, ipc:///absolute/path or tcp://127.0.0.1:port",
            )
        parts = connected_parts(self.ranks, self.communicators)
        if len(parts) > 1:
            raise ConfigurationError(
                where="communicators",
                problem=f"no communicator joins the ranks {parts[0]} with the ranks {parts[1]}",
                fix="ranks that never step together are groups of their own: give each a name and a segment",
            )

    def group_digest(self) -> int:
        """Return 64 bits that are equal on all ranks iff they were told the same about their group."""
        shared = {
            "name": self.name,
            "ranks": self.ranks,
            "communicators": {k: [list(g) for g in v] for k, v in sorted(self.communicators.items())},
            "shut_down_groups": self.shut_down_groups,
            "follow": self.follow,
            "kv_cache_process": self.kv_cache_process,
            "strategy": self.strategy,
        }
        return xxhash.xxh3_64_intdigest(json.dumps(shared, sort_keys=True).encode())


def load_config(path: str | Path) -> WsmConfig:
    """Read a configuration file.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is not a mapping, or holds an unknown, missing or ill-typed value.
    """
    where = str(path)
    content = read_yaml(
        path,
        lambda reason: ConfigurationError(where=where, problem=reason, fix="give a readable YAML file"),
    )
    if not isinstance(content, Mapping):
        raise ConfigurationError(
            where=where, problem=f"holds a {type(content).__name__}", fix="it must be a mapping of options"
        )
    return config_from_mapping(content, where=where)


def config_from_mapping(content: Mapping[str, Any], *, where: str = "mapping") -> WsmConfig:
    """Build a configuration from plain values, for example a part of an engine's own file.

    Raises
    ------
    ConfigurationError
        As :func:`load_config`.
    """
    nested: dict[str, type[Any]] = {
        "snapshot": SnapshotConfig,
        "ipc": IpcConfig,
        "ipc_async": IpcAsyncConfig,
        "rsync": RsyncConfig,
        "delta": DeltaConfig,
        "mooncake": MooncakeConfig,
        "deadlines": Deadlines,
        "engine_words": EngineWordsConfig,
    }
    values = dict(content)
    for key, kind in nested.items():
        if key in values:
            values[key] = build(kind, values[key], f"{where}: {key}")
    config: WsmConfig = build(WsmConfig, values, where)
    return config
