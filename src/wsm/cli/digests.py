"""``wsm digest``, ``wsm diff``, ``wsm verify``: what files, shared memory and groups hold, byte by byte.

A path that exists is taken for what it is, anything else for the name of a group. A configuration stands for
what its strategy would load, for every rank. What a group holds is what its ranks reported, and wrote beside
their journals, when they read their memory back after the last load; they are not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from wsm.cli._base import (
    EXISTING_DIRECTORY,
    FROM_0,
    VERSION,
    WRONG_USAGE,
    CommandEndedError,
    answer,
    command,
    json_option,
    options,
    show,
)
from wsm.cli._groups import viewed_group
from wsm.cli.memory_plan import configured_sources
from wsm.command import RankReport
from wsm.controller.group_view import GroupView
from wsm.printable import counted
from wsm.states.view import View
from wsm.states.vocabulary import WeightState
from wsm.strategies.applier.tensor_ledger import read_ledger
from wsm.strategies.inventory import (
    Inventory,
    TensorDifference,
    TensorDigest,
    compare,
    inventory_of_file,
    take_inventory,
)
from wsm.strategies.ipc.metas import is_metas_file
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.ipc.strategy import rank_of_metas
from wsm.strategies.snapshot.source import SnapshotSource, Verify
from wsm.strategies.snapshot.store import shards_in

_SHOWN = 20


_target_options = options(
    click.option("--rank", type=FROM_0, help="This rank's shard only."),
    click.option("--version", type=VERSION, metavar="V", help="By default the newest announced."),
    click.option("--allow-pickle", is_flag=True, help="Read pickles too, which runs code in them."),
)


_journals_option = click.option(
    "--journals",
    type=EXISTING_DIRECTORY,
    metavar="DIRECTORY",
    help="Where the group's ranks keep journals, and what they hold tensor by tensor.",
)


@command
@click.argument("target")
@_target_options
@_journals_option
@click.option("--tensors", "with_tensors", is_flag=True, help="Show every tensor, too.")
@json_option("Print the digests as JSON.")
def digest(target: str, *, with_tensors: bool, as_json: bool, **asked: Any) -> None:
    """Read what TARGET holds and print its digest, per rank.

    TARGET is a file of tensors, a snapshot directory, a metas file of shared tensors, a configuration
    (wsm.yaml: what its strategy would load, where that can be read without a rank or a trainer noticing),
    or the name of a group. Files and shared memory are read; a group's digests are those that its ranks
    computed from their memory after the last load. Equal digests mean equal names, dtypes, shapes and bytes,
    wherever they are. The group digest is of a published version, its label and all its shards: what receipts
    call manifest_digest.

    Examples
    --------
      wsm digest /models/policy --version 7
          every rank's shard of version 7
      wsm digest policy
          what every rank of the group policy holds
      wsm digest model_state.tp0.0.pdparams --tensors
          every tensor of a file
    """
    found = inventories(target, **asked)
    lines = []
    for each in found:
        rows = each.tensors or () if with_tensors else ()
        of_group = f"; group digest {each.manifest_digest}" if each.manifest_digest else ""
        lines.append(f"{each.digest}  {_title(each)}{of_group}")
        lines += [f"{row.digest}    {row.spec.name} {row.spec.dtype}{list(row.spec.shape)}" for row in rows]
    answer([_plain(each, with_tensors=with_tensors) for each in found], *lines, as_json=as_json)


@command
@click.argument("left")
@click.argument("right")
@_target_options
@_journals_option
@json_option("Print the differences as JSON.")
def diff(left: str, right: str, *, as_json: bool, **asked: Any) -> None:
    """Compare what LEFT and RIGHT hold, rank by rank and tensor by tensor.

    Both may be anything that 'wsm digest' reads. Exit code 1 says that they differ. Of a group the digest of
    each whole shard is known, so it says which ranks differ; with --journals it says in which tensors.

    Examples
    --------
      wsm diff /models/policy policy
          whether a group holds what is published
      wsm diff /models/policy policy --journals /var/log/policy
          and in which tensors not
      wsm diff old/model_state.tp0.0.pdparams new/model_state.tp0.0.pdparams
          tensor by tensor
    """
    pairs = _pairs(inventories(left, **asked), inventories(right, **asked))
    found = [(ours, theirs, compare(ours, theirs)) for ours, theirs in pairs]
    differing = [entry for entry in found if entry[2] != []]
    lines = [_the_same([ours for ours, _, _ in found])] if found and not differing else []
    for ours, theirs, differences in differing:
        lines += [f"{_title(ours)}  and  {_title(theirs)}", *(f"  {line}" for line in _lines(differences))]
    content = [
        {
            "left": _plain(ours, with_tensors=False),
            "right": _plain(theirs, with_tensors=False),
            "equal": differences == [],
            "tensors": None if differences is None else {entry.name: entry.how for entry in differences},
        }
        for ours, theirs, differences in found
    ]
    answer(content, *lines, as_json=as_json)
    if differing:
        raise CommandEndedError(
            f"{left} and {right} differ in {len(differing)} of {counted(len(found), 'shard')}"
        )


@command
@click.argument("target")
@_target_options
def verify(target: str, **asked: Any) -> None:
    """Read every byte of TARGET and hold it against the digests that were promised for it.

    Exit code 1 names the tensors that are corrupt, or says that nothing was promised. For a group: whether
    every rank has verified its memory after the last load, of one version of one publication.

    Examples
    --------
      wsm verify /models/policy
          every byte of the newest version, against its manifests
      wsm verify /shared_ipc_meta/ipc_metas_0
          shared tensors against their metas
      wsm verify wsm.yaml --version 8
          what a group would load, whatever its strategy's files
      wsm verify policy
          whether all ranks of a group hold one publication
    """
    found = inventories(target, verify="if_promised", **asked)
    publications = {(each.version, each.manifest_digest, each.publication) for each in found}
    if len(publications) > 1:
        raise CommandEndedError(
            f"the shards of {target} are not of one publication: {sorted(map(str, publications))}"
        )
    for each in found:
        rows = each.tensors
        if rows is not None and any(row.promised is None for row in rows):
            raise CommandEndedError(f"{_title(each)}: no manifest promises what its tensors should be")
        broken = [row for row in rows or () if not row.kept]
        for row in broken[:_SHOWN]:
            show(f"{row.spec.name}: {row.broken or f'{row.digest} instead of {row.promised}'}")
        if broken:
            raise CommandEndedError(
                f"{counted(len(broken), 'tensor')} of {_title(each)} "
                f"{'is' if len(broken) == 1 else 'are'} corrupt; publish again"
            )
        count = "verified by its rank" if rows is None else f"{counted(len(rows), 'tensor')} verified"
        show(f"{_title(each)}: {count}")


def _pairs(left: Sequence[Inventory], right: Sequence[Inventory]) -> list[tuple[Inventory, Inventory]]:
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    ours, theirs = {each.rank: each for each in left}, {each.rank: each for each in right}
    if ours.keys() != theirs.keys():
        raise CommandEndedError(
            f"there are shards of ranks {sorted(map(str, ours))} and of ranks {sorted(map(str, theirs))}; "
            "choose one with --rank"
        )
    return [(ours[rank], theirs[rank]) for rank in ours]


def _lines(differences: list[TensorDifference] | None) -> list[str]:
    if differences is None:
        return ["the digests of the whole shards differ (--journals DIRECTORY may say in which tensors)"]
    lines = [f"{entry.name}: {entry.how}" for entry in differences[:_SHOWN]]
    rest = len(differences) - _SHOWN
    return [*lines, f"and {rest} more"] if rest > 0 else lines


def _the_same(found: Sequence[Inventory]) -> str:
    """Return how much was compared and found equal; of some only the digest of all tensors is known."""
    tensors = {len(each.tensors) for each in found if each.tensors is not None}
    each = f", {counted(tensors.pop(), 'tensor')} each" if len(tensors) == 1 else ""
    return f"{counted(len(found), 'shard')}{each}: the same"


def _title(each: Inventory) -> str:
    version = "" if each.version is None else f" version {each.version}"
    rank = "" if each.rank is None or each.where.startswith("rank ") else f" rank {each.rank}"
    return f"{each.where}{version}{rank}"


def _plain(each: Inventory, *, with_tensors: bool) -> dict[str, Any]:
    named = ("where", "rank", "version", "digest", "manifest_digest")
    content = {name: getattr(each, name) for name in named}
    if with_tensors and each.tensors is not None:
        content["tensors"] = {row.spec.name: row.digest for row in each.tensors}
    return content


# -- what may be pointed at -----------------------------------------------------------------------

#: The suffixes of a configuration file.
_CONFIGURATIONS = (".yaml", ".yml")

#: Seconds that a rank may take to write the report that is being read, and between two looks at it.
_WRITES_S = 1.0
_LOOK_S = 0.001


def inventories(
    target: str,
    *,
    rank: int | None,
    version: str | None,
    allow_pickle: bool,
    journals: Path | None = None,
    verify: Verify = "if_present",
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
        said = f"there is neither a file nor a directory {target!r}; correct the path"
        raise CommandEndedError(said, exit_code=WRONG_USAGE)
    return [found for found in _of_group(target, journals) if rank in (None, found.rank)]


def _of_directory(
    path: Path, rank: int, device: int, version: str | None, *, allow_pickle: bool, verify: Verify
) -> Inventory:
    source = SnapshotSource(
        path, rank, device_id=device, shared_directory=None, allow_pickle=allow_pickle, verify=verify
    )
    return take_inventory(source, strategy="ipc_snapshot", rank=rank, version=version)


def _of_configuration(path: Path, rank: int | None, version: str | None) -> list[Inventory]:
    with configured_sources(path, rank) as (config, sources):
        if not sources.rereadable:
            raise CommandEndedError(
                f"{path} has the strategy {config.strategy}, whose versions only the ranks can take; "
                "ask the group by its name what it holds, or plan with 'wsm memory'"
            )
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
    with viewed_group(name) as group:
        reports = [_held(group, rank) for rank in range(group.segment.world_size)]
    found = []
    for rank, report in enumerate(reports):
        if report is None or report.digest is None:
            raise CommandEndedError(
                f"rank {rank} of group {name} holds no weights that it has verified, so they have no digest; "
                f"see 'wsm status {name}'"
            )
        rows = None if journals is None else read_ledger(journals, rank, report.digest)
        found.append(
            Inventory(
                where=f"rank {rank} of group {name}",
                rank=rank,
                version=report.version,
                digest=report.digest,
                manifest_digest=report.manifest_digest,
                publication=report.facts.get("publication"),
                tensors=None if rows is None else tuple(TensorDigest(*row) for row in rows),
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
