"""What the digest commands may be pointed at: files, a directory, a configuration, or a group's name.

A path that exists is taken for what it is, anything else for the name of a group. A configuration stands for
what its strategy would load, for every rank. What a group holds is what
its ranks reported, and wrote beside their journals, when they read their memory back after the last load;
they are not disturbed.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from wsm.cli import errors
from wsm.cli._base import WRONG_USAGE, CommandEndedError, wrong_usage
from wsm.cli._groups import known_group, read_config
from wsm.controller.group_view import GroupView
from wsm.report import RankReport
from wsm.signals.segment import Segment
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.strategies.applier.tensor_ledger import read_ledger
from wsm.strategies.inventory import Inventory, TensorDigest, inventory_of_file, take_inventory
from wsm.strategies.ipc.metas import is_metas_file
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.ipc.strategy import rank_of_metas
from wsm.strategies.snapshot.lookup import shards_in
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.worker.loading import Sources

#: How the file of a configuration is called.
_CONFIGURATIONS = (".yaml", ".yml")

#: How long a rank may take to write a report that is being read, and between two looks, in seconds.
_WRITES_S = 1.0
_LOOK_S = 0.001


def inventories(
    target: str,
    *,
    rank: int | None,
    version: str | None,
    allow_pickle: bool,
    journals: Path | None = None,
    verify: str = "if_present",
) -> list[Inventory]:
    """Return one inventory per shard of `target`, in rank order. Blocks; reads everything.

    With `journals`, the directory of a group's journals, the tensors of its shards are known, too. `verify`
    says which manifests a directory's files need (:class:`wsm.strategies.snapshot.source.SnapshotConfig`).

    Raises
    ------
    wsm.errors.BadInputError
        If something there cannot be read.
    RefusedError
        If reading what a configuration names would take it from a rank.
    RefusedError
        If a group holds nothing that was verified.
    CommandEndedError
        If there is neither such a path nor such a group: wrong usage.
    """
    path = Path(target)
    if path.is_dir():
        found = [
            _of_directory(path, shard, device, version, allow_pickle=allow_pickle, verify=verify)
            for shard, device in shards_in(path, version)
            if rank in (None, shard)
        ]
        if found:
            return found
        return [_of_directory(path, rank or 0, rank or 0, version, allow_pickle=allow_pickle, verify=verify)]
    if path.suffix in _CONFIGURATIONS and path.is_file():
        return _of_configuration(path, rank, version)
    if path.exists():
        if is_metas_file(path.name) and path.name.rpartition("_")[2].isdecimal():
            return [_of_metas(path, version, allow_pickle=allow_pickle)]
        return [inventory_of_file(path, allow_pickle=allow_pickle)]
    if "/" in target:  # which no group has in its name
        with wrong_usage():
            raise errors.no_such_path(path=target)
    return [found for found in _of_group(target, journals) if rank in (None, found.rank)]


def _of_directory(
    path: Path, rank: int, device: int, version: str | None, *, allow_pickle: bool, verify: str
) -> Inventory:
    source = SnapshotSource(
        path, rank, device_id=device, shared_directory=None, allow_pickle=allow_pickle, verify=verify
    )
    return take_inventory(source, strategy="ipc_snapshot", rank=rank, version=version)


def _of_configuration(path: Path, rank: int | None, version: str | None) -> list[Inventory]:
    with wrong_usage():
        config = read_config(path)
        sources = Sources(config)
    with closing(sources):
        if rank is not None and rank >= config.ranks:
            said = f"rank {rank} is none of the {config.ranks} of {config.name}"
            raise CommandEndedError(said, exit_code=WRONG_USAGE)
        if not sources.rereadable:
            raise errors.not_rereadable(file=str(path), strategy=config.strategy)
        return [
            take_inventory(sources.of(each), strategy=config.strategy, rank=each, version=version)
            for each in range(config.ranks)
            if rank in (None, each)
        ]


def _of_metas(path: Path, version: str | None, *, allow_pickle: bool) -> Inventory:
    rank = rank_of_metas(path, allow_pickle=allow_pickle)
    device = int(path.name.rpartition("_")[2])
    source = IpcSource(path.parent, rank, device_id=device, adopt=False, allow_pickle=allow_pickle)
    return take_inventory(source, strategy="ipc", rank=rank, version=version)


def _of_group(name: str, journals: Path | None) -> list[Inventory]:
    with known_group(name), Segment.attach(name) as segment:
        group = GroupView(segment)
        try:
            reports = [_held(group, rank) for rank in range(segment.world_size)]
        finally:
            group.close()
    found = []
    for rank, report in enumerate(reports):
        if report is None or report.digest is None:
            raise errors.nothing_known(group=name, rank=rank)
        found.append(
            Inventory(
                where=f"rank {rank} of group {name}",
                rank=rank,
                version=report.version,
                digest=report.digest,
                manifest_digest=report.manifest_digest,
                tensors=_tensors(journals, rank, report.digest),
            )
        )
    return found


def _held(group: GroupView, rank: int) -> RankReport | None:
    """Return what a rank holds; one that is just writing its report is looked at again for a moment."""
    until = time.monotonic() + _WRITES_S
    while _holds(group.view(), rank):
        report = group.last_commit(rank)
        if report is not None or time.monotonic() > until:
            return report
        time.sleep(_LOOK_S)
    return None


def _holds(view: View, rank: int) -> bool:
    """Whether a rank says in this epoch that its weights are whole and committed."""
    status = view.statuses[rank]
    return status.epoch == view.command.epoch and status.weights == WeightState.NORMAL


def _tensors(journals: Path | None, rank: int, digest: str) -> tuple[TensorDigest, ...] | None:
    rows = None if journals is None else read_ledger(journals, rank, digest)
    return None if rows is None else tuple(TensorDigest(spec, found) for spec, found in rows)
