"""The memory that a publisher lets ranks read: copies of its own, or the trainer's tensors themselves.

Whatever ranks can read there, others can write: the engine does not authenticate. So copies are registered,
beside each other in one region, unless the trainer says that its own memory may be; then only small tensors
are copied, because every region and every read has a price. What is registered stays so until a version does
without it, so that publishing the same buffers again registers nothing.
"""

from __future__ import annotations

import bisect
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from wsm.strategies.applier.copying import CHUNK_BYTES
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.digest import RunningDigest, running_digest
from wsm.strategies.errors import TrainerTensorError
from wsm.strategies.mooncake.engine import Engine, address_of
from wsm.strategies.mooncake.plan import MemoryRegion, Placed, TransferLayout
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, specs_of

#: Tensors smaller than this share a region of copies.
PACKED_BELOW = 1 << 20
_ALIGNMENT = 64

# An address, and bytes from there on.
_Range: TypeAlias = tuple[int, int]


class PublishedMemory:
    """Registered memory of one publisher.

    Parameters
    ----------
    engine : Engine
        Reads it for others.
    in_place : bool
        Whether the trainer's own memory may be registered.
    packed_below : int
        Tensors with fewer bytes are copied all the same.
    """

    def __init__(self, engine: Engine, *, in_place: bool = False, packed_below: int = PACKED_BELOW) -> None:
        self._engine = engine
        self._packed_below = packed_below if in_place else sys.maxsize
        self._packs: dict[int, memoryview] = {}
        self._registered: set[_Range] = set()
        self._alive: tuple[memoryview, ...] = ()

    @property
    def regions(self) -> int:
        """How many regions are registered."""
        return len(self._registered)

    def place(
        self, shards: Mapping[int, TrainerTensors], *, finite: bool = False
    ) -> dict[int, tuple[TransferLayout, tuple[str, ...]]]:
        """Let ranks read `shards`; no rank may be reading what was placed before. Blocks: reads every byte.

        Ranks that are given the very same state dict share its place.

        Returns
        -------
        dict of int to (Layout, tuple of str)
            Per rank, where its tensors lie, and their digests.

        Raises
        ------
        TrainerTensorError
            If one of them is no tensor in an accepted form, or `finite` and one is not.
        RefusedError
            If the engine does not take it.
        """
        first = {id(tensors): rank for rank, tensors in reversed(list(shards.items()))}
        placed = self._place({rank: shards[rank] for rank in first.values()}, finite=finite)
        return {rank: placed[first[id(tensors)]] for rank, tensors in shards.items()}

    def _place(
        self, shards: Mapping[int, TrainerTensors], *, finite: bool
    ) -> dict[int, tuple[TransferLayout, tuple[str, ...]]]:
        specs = check_shards(shards)
        data = {
            rank: {spec.name: bytes_of(shards[rank], spec) for spec in of_rank if not self._packs_it(spec)}
            for rank, of_rank in specs.items()
        }
        packs = {
            rank: self._pack(rank, sum(_aligned(spec.nbytes) for spec in of_rank if self._packs_it(spec)))
            for rank, of_rank in specs.items()
        }
        read = {rank: merged([_range(packs[rank]), *map(_range, data[rank].values())]) for rank in specs}
        alive = [*packs.values(), *(view for views in data.values() for view in views.values())]
        self._register(merged([of_one for of_rank in read.values() for of_one in of_rank]), alive)
        self._packs = {rank: pack for rank, pack in self._packs.items() if rank in packs}
        return {
            rank: self._placed(shards[rank], specs[rank], data[rank], packs[rank], read[rank], finite=finite)
            for rank in shards
        }

    def close(self) -> None:
        """Forget everything; the engine must be closed before."""
        self._registered.clear()
        self._packs.clear()
        self._alive = ()

    def _packs_it(self, spec: TensorSpec) -> bool:
        return spec.nbytes < self._packed_below

    def _pack(self, rank: int, nbytes: int) -> memoryview:
        pack = self._packs.get(rank, memoryview(b""))
        if len(pack) < nbytes:
            pack = memoryview(mmap.mmap(-1, nbytes))
            self._packs[rank] = pack
        return pack[:nbytes]

    def _register(self, wanted: Sequence[_Range], alive: Sequence[memoryview]) -> None:
        # First what goes: memory that moved may overlap with where it was.
        for old in self._registered - set(wanted):
            self._engine.unregister(old[0])
            self._registered.discard(old)
        self._alive = tuple(alive)
        for new in wanted:
            if new not in self._registered:
                self._engine.register(*new)
                self._registered.add(new)

    def _placed(
        self,
        tensors: TrainerTensors,
        specs: Sequence[TensorSpec],
        data: Mapping[str, memoryview],
        pack: memoryview,
        ranges: Sequence[_Range],
        *,
        finite: bool,
    ) -> tuple[TransferLayout, tuple[str, ...]]:
        begins = [begin for begin, _ in ranges]
        placed, digests, packed = [], [], 0
        for spec in specs:
            digest = running_digest()
            if self._packs_it(spec):
                view = pack[packed : packed + spec.nbytes]
                source = bytes_of(tensors, spec)
                _copy(source, view, digest)
                packed += _aligned(spec.nbytes)
            else:
                source = view = data[spec.name]
                digest.update(view)
            if finite:
                check_finite(spec, source)
            region = bisect.bisect_right(begins, address_of(view)) - 1 if spec.nbytes else 0
            offset = address_of(view) - begins[region] if spec.nbytes else 0
            placed.append(Placed(spec, region, offset))
            digests.append(digest.hexdigest())
        return TransferLayout(tuple(MemoryRegion(*each) for each in ranges), tuple(placed)), tuple(digests)


def check_shards(shards: Mapping[int, TrainerTensors]) -> dict[int, list[TensorSpec]]:
    """Return the specs of every rank's tensors; nothing is copied.

    Raises
    ------
    TrainerTensorError
        If one of them is no tensor in an accepted form, or a rank has none.
    """
    specs = {rank: specs_of(tensors) for rank, tensors in shards.items()}
    for rank, of_rank in specs.items():
        if not of_rank:
            raise TrainerTensorError(tensor="", problem=f"rank {rank} has none")
    return specs


def merged(ranges: Sequence[_Range]) -> list[_Range]:
    """Return ranges of addresses, overlapping and touching ones made one, in order; pure."""
    found: list[_Range] = []
    for begin, nbytes in sorted(each for each in ranges if each[1]):
        if found and begin <= sum(found[-1]):
            last, held = found[-1]
            found[-1] = (last, max(held, begin + nbytes - last))
        else:
            found.append((begin, nbytes))
    return found


def _copy(source: memoryview, destination: memoryview, digest: RunningDigest) -> None:
    """Copy and digest what is the trainer's: others can write where the copy lies."""
    for begin in range(0, len(source), CHUNK_BYTES):
        chunk = source[begin : begin + CHUNK_BYTES]
        copy_bytes(chunk, destination[begin : begin + len(chunk)])
        digest.update(chunk)


def _range(view: memoryview) -> _Range:
    return address_of(view), view.nbytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
