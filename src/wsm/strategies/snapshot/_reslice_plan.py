"""Which pieces of which shards make up one rank's tensors, when a version was written for other ranks.

All manifests of the version are compared: every tensor must be placed, alike in every shard that holds it,
and held by just the ranks that its placement says. Pure: manifests in, pieces out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from wsm.errors import BadInputError, InternalError
from wsm.strategies import errors as strategies_errors
from wsm.strategies.errors import listed
from wsm.strategies.promise import PromisedTensor
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.placement import AxisRun, Placement, Shape, Split, local_shape, runs, whole_shape
from wsm.strategies.tensor import TensorSpec


@dataclass(frozen=True)
class SlicePiece:
    """A stretch of the split axis that is taken from one shard's tensor.

    Parameters
    ----------
    rank : int
        Whose shard, of the ranks that the version was written for.
    begin : int
        Where it begins in that rank's tensor.
    length : int
        How long it is.
    """

    rank: int
    begin: int
    length: int


@dataclass(frozen=True)
class Assembly:
    """How one tensor is put together.

    Parameters
    ----------
    spec : TensorSpec
        The tensor, as the loading rank holds it.
    axis : int
        The axis along which the pieces lie.
    pieces : tuple of Piece
        In the order in which they lie in the tensor.
    sources : mapping of int to PromisedTensor
        The tensors that they are taken from, by rank.
    """

    spec: TensorSpec
    axis: int
    pieces: tuple[SlicePiece, ...]
    sources: Mapping[int, PromisedTensor]

    @property
    def whole_from(self) -> int | None:
        """The rank whose tensor it is unchanged, if it is one."""
        rank = self.pieces[0].rank
        whole = len(self.sources) == 1 and self.sources[rank].spec == self.spec
        return rank if whole and self._in_order() else None

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for it: all of each source, because a digest proves a tensor or nothing."""
        return sum(entry.spec.nbytes for entry in self.sources.values())

    def _in_order(self) -> bool:
        position = 0
        for piece in self.pieces:
            if piece.begin != position:
                return False
            position += piece.length
        return True


_Key: TypeAlias = tuple[Placement, Shape]
_Cut: TypeAlias = tuple[int, tuple[SlicePiece, ...]]


def plan(shards: Sequence[ShardManifest], rank: int, ranks: int, *, where: str) -> list[Assembly]:
    """Say how every tensor of `rank` of `ranks` is put together.

    Parameters
    ----------
    shards : sequence of ShardManifest
        Of all ranks that the version was written for, in their order.
    rank, ranks : int
        Which of how many ranks loads.
    where : str
        What the manifests describe, for messages.

    Raises
    ------
    BadInputError
        If no tensor at all is placed: the version is for its own number of ranks alone. Or if there is no
        such rank.
    BadInputError
        If some tensors are not placed.
    BadInputError (``placement``)
        If one cannot be divided by so many ranks.
    BadInputError
        If the shards do not fit together.
    """
    if rank >= ranks:
        raise strategies_errors.shard_identity(file=where, field="world size", expected=rank + 1, found=ranks)
    held = _by_name(shards)
    _require_placements(held, len(shards), ranks, where)
    whole = _whole_shapes(held, shards, where)
    cuts: dict[_Key, _Cut | None] = {}
    assemblies = []
    for name, entries in held.items():
        first = next(iter(entries.values()))
        placement = first.placement
        if placement is None:  # checked above; here for the type checker
            continue
        shape = whole[name]
        key = (placement, shape)
        if key not in cuts:
            cuts[key] = _cut(name, placement, shape, found=len(shards), rank=rank, ranks=ranks)
        cut = cuts[key]
        local = local_shape(name, placement, shape, rank, ranks)
        if cut is None or local is None:
            continue
        axis, pieces = cut
        sources = {piece.rank: entries[piece.rank] for piece in pieces}
        assemblies.append(Assembly(replace(first.spec, shape=local), axis, pieces, sources))
    return assemblies


def _by_name(shards: Sequence[ShardManifest]) -> dict[str, dict[int, PromisedTensor]]:
    held: dict[str, dict[int, PromisedTensor]] = {}
    for rank, shard in enumerate(shards):
        for entry in shard.tensors:
            held.setdefault(entry.spec.name, {})[rank] = entry
    return held


def _require_placements(
    held: Mapping[str, Mapping[int, PromisedTensor]], found: int, wanted: int, where: str
) -> None:
    missing = [
        name for name, entries in held.items() if any(entry.placement is None for entry in entries.values())
    ]
    if len(missing) == len(held):
        raise strategies_errors.shard_identity(file=where, field="world size", expected=wanted, found=found)
    if missing:
        raise BadInputError(
            f"{where} was written for {found} ranks and does not say how {len(missing)} of its tensors are "
            f"divided ({listed([repr(name) for name in missing])}), so it cannot be read for {wanted}; "
            "publish with placements for all tensors, or for the number of ranks that load",
            code="placement-missing",
            where=where,
            found=found,
            wanted=wanted,
            unfit=True,
            tensors=tuple(missing),
        )


def _whole_shapes(
    held: Mapping[str, Mapping[int, PromisedTensor]], shards: Sequence[ShardManifest], where: str
) -> dict[str, Shape]:
    """Return the whole shape of every tensor; an error if the shards do not agree on what they hold."""
    found: dict[str, Shape] = {}
    problems: list[tuple[str, str]] = []
    seen: dict[_Key, tuple[tuple[AxisRun, ...], ...]] = {}
    for name, entries in held.items():
        kinds = {
            (
                entry.spec.dtype,
                entry.placement,
                whole_shape(name, entry.placement, entry.spec.shape, rank, len(shards)),
            )
            for rank, entry in entries.items()
            if entry.placement is not None
        }
        if len(kinds) > 1:
            problems.append((name, "is placed otherwise, or of another dtype, on another rank"))
            continue
        _, placement, shape = next(iter(kinds))
        key = (placement, shape)
        if key not in seen:
            seen[key] = tuple(runs(name, placement, shape, rank, len(shards)) for rank in range(len(shards)))
        problem = _holders_problem(entries, seen[key])
        if problem:
            problems.append((name, problem))
        found[name] = shape
    if problems:
        details = listed([f"{tensor!r} {problem}" for tensor, problem in problems])
        raise BadInputError(
            f"the shards in {where} do not fit together: {details}; publish the version again",
            code="bad-slices",
            where=where,
            unfit=True,
            problems=tuple(problems),
        )
    return found


def _holders_problem(
    entries: Mapping[int, PromisedTensor], expected: Sequence[tuple[AxisRun, ...]]
) -> str | None:
    holders = [rank for rank, held in enumerate(expected) if held]
    missing = [rank for rank in holders if rank not in entries]
    if missing:
        return f"is missing on rank {missing[0]}, which holds a slice of it"
    strangers = [rank for rank in entries if rank not in holders]
    if strangers:
        return f"overlaps: rank {strangers[0]} has it, which holds no slice of it"
    first: dict[tuple[AxisRun, ...], int] = {}
    for rank in holders:
        twin = first.setdefault(expected[rank], rank)
        if entries[twin].digest != entries[rank].digest:
            return f"overlaps: ranks {twin} and {rank} hold the same slice with other bytes"
    return None


def _cut(name: str, placement: Placement, shape: Shape, *, found: int, rank: int, ranks: int) -> _Cut | None:
    """Find the pieces of what `rank` of `ranks` holds in what `found` ranks hold."""
    wanted = runs(name, placement, shape, rank, ranks)
    if not wanted:
        return None
    # Its namesake first, so that ranks which read the same version spread over copies of the same slice.
    order = sorted(range(found), key=lambda source: (source - rank) % found)
    held = [(source, runs(name, placement, shape, source, found)) for source in order]
    pieces: list[SlicePiece] = []
    for run in wanted:
        position, end = run.begin, run.begin + run.length
        while position < end:
            pieces.append(_piece_at(name, held, position, end))
            position += pieces[-1].length
    if not pieces:  # an extent of 0: any holder stands for it
        pieces.append(SlicePiece(next(source for source, stretches in held if stretches), 0, 0))
    return (placement.axis if isinstance(placement, Split) else 0), tuple(pieces)


def _piece_at(
    name: str, held: Sequence[tuple[int, tuple[AxisRun, ...]]], position: int, end: int
) -> SlicePiece:
    for source, stretches in held:
        local = 0
        for run in stretches:
            if run.begin <= position < run.begin + run.length:
                length = min(end, run.begin + run.length) - position
                return SlicePiece(source, local + position - run.begin, length)
            local += run.length
    raise InternalError(
        f"no rank holds {name!r} at {position}, though its placement was checked", tensor=name
    )
