"""``wsm digest``, ``wsm diff``, ``wsm verify``: what files, shared memory and groups hold, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from wsm.cli._base import CommandEndedError, TeachingCommand, Version, json_option, show, show_json
from wsm.cli._digest_targets import inventories
from wsm.printable import counted
from wsm.strategies.inventory import Inventory, TensorDifference, compare

_SHOWN = 20


def _target_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--allow-pickle", is_flag=True, help="Read pickles too, which runs code in them."),
        click.option("--version", type=Version(), metavar="V", help="By default the newest announced."),
        click.option("--rank", type=click.IntRange(min=0), help="This rank's shard only."),
    ):
        command = option(command)
    return command


_journals_option = click.option(
    "--journals",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Where the group's ranks keep journals, and what they hold tensor by tensor.",
)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm digest /models/policy --version 7", "every rank's shard of version 7"),
        ("wsm digest policy", "what every rank of the group policy holds"),
        ("wsm digest model_state.tp0.0.pdparams --tensors", "every tensor of a file"),
    ),
)
@click.argument("target")
@_target_options
@_journals_option
@click.option("--tensors", "with_tensors", is_flag=True, help="Show every tensor, too.")
@json_option("Print the digests as JSON.")
def digest(
    target: str,
    *,
    rank: int | None,
    version: str | None,
    allow_pickle: bool,
    journals: Path | None,
    with_tensors: bool,
    as_json: bool,
) -> None:
    """Read what TARGET holds and print its digest, per rank.

    TARGET is a file of tensors, a snapshot directory, a metas file of shared tensors, a configuration
    (wsm.yaml: what its strategy would load, where that can be read without a rank or a trainer noticing),
    or the name of a group. Files and shared memory are read; a group's digests are those that its ranks
    computed from their memory after the last load. Equal digests mean equal names, dtypes, shapes and bytes,
    wherever they are.
    """
    found = inventories(target, rank=rank, version=version, allow_pickle=allow_pickle, journals=journals)
    if as_json:
        show_json([_plain(each, with_tensors=with_tensors) for each in found])
        return
    for each in found:
        show(f"{each.digest}  {_title(each)}")
        for row in each.tensors or () if with_tensors else ():
            show(f"{row.digest}    {row.spec.name} {row.spec.dtype}{list(row.spec.shape)}")


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm diff /models/policy policy", "whether a group holds what is published"),
        ("wsm diff /models/policy policy --journals /var/log/policy", "and in which tensors not"),
        ("wsm diff old/model_state.tp0.0.pdparams new/model_state.tp0.0.pdparams", "tensor by tensor"),
    ),
)
@click.argument("left")
@click.argument("right")
@_target_options
@_journals_option
@json_option("Print the differences as JSON.")
def diff(
    left: str,
    right: str,
    *,
    rank: int | None,
    version: str | None,
    allow_pickle: bool,
    journals: Path | None,
    as_json: bool,
) -> None:
    """Compare what LEFT and RIGHT hold, rank by rank and tensor by tensor.

    Both may be anything that 'wsm digest' reads. Exit code 1 says that they differ. Of a group the digest of
    each whole shard is known, so it says which ranks differ; with --journals it says in which tensors.
    """
    options: dict[str, Any] = {"rank": rank, "version": version, "allow_pickle": allow_pickle}
    options["journals"] = journals
    pairs = _pairs(inventories(left, **options), inventories(right, **options))
    found = [(ours, theirs, compare(ours, theirs)) for ours, theirs in pairs]
    differing = [entry for entry in found if entry[2] != []]
    if as_json:
        show_json([_plain_pair(*entry) for entry in found])
    else:
        if found and not differing:
            show(_the_same([ours for ours, _, _ in found]))
        for ours, theirs, differences in differing:
            show(f"{_title(ours)}  and  {_title(theirs)}")
            for line in _lines(differences):
                show(f"  {line}")
    if differing:
        raise CommandEndedError(
            f"{left} and {right} differ in {len(differing)} of {counted(len(found), 'shard')}"
        )


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm verify /models/policy", "every byte of the newest version, against its manifests"),
        ("wsm verify /shared_ipc_meta/ipc_metas_0", "shared tensors against their metas"),
        ("wsm verify wsm.yaml --version 8", "what a group would load, whatever its strategy's files"),
        ("wsm verify policy", "whether all ranks of a group hold one publication"),
    ),
)
@click.argument("target")
@_target_options
def verify(target: str, *, rank: int | None, version: str | None, allow_pickle: bool) -> None:
    """Read every byte of TARGET and hold it against the digests that were promised for it.

    Exit code 1 names the tensors that are corrupt, or says that nothing was promised. For a group: whether
    every rank has verified its memory after the last load, of one version of one publication.
    """
    found = inventories(target, rank=rank, version=version, allow_pickle=allow_pickle, verify="if_promised")
    publications = {(each.version, each.manifest_digest) for each in found}
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
    content: dict[str, Any] = {
        "where": each.where,
        "rank": each.rank,
        "version": each.version,
        "digest": each.digest,
        "manifest_digest": each.manifest_digest,
    }
    if with_tensors and each.tensors is not None:
        content["tensors"] = {row.spec.name: row.digest for row in each.tensors}
    return content


def _plain_pair(
    ours: Inventory, theirs: Inventory, differences: list[TensorDifference] | None
) -> dict[str, Any]:
    return {
        "left": _plain(ours, with_tensors=False),
        "right": _plain(theirs, with_tensors=False),
        "equal": differences == [],
        "tensors": None if differences is None else {entry.name: entry.how for entry in differences},
    }
