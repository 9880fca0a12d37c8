"""Digests of what each rank of a group holds of a whole model, so that a rank reads that and no more.

Adopting reads a whole model anyway, and digests the slices of every rank of the group in the same pass. The
digests stand beside the version, one file per rank that is named by the version's seal, and say what a
rank's promise says. A group of another number of ranks finds none, and reads whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from wsm import log
from wsm.errors import BadInputError
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import storing
from wsm.strategies.files.atomic_file import write_new
from wsm.strategies.promise import Digest, PromisedTensor, ShardPromise
from wsm.strategies.snapshot.manifest import VersionManifest
from wsm.strategies.snapshot.placement import AxisRun, Placement, Split, local_shape, runs
from wsm.strategies.snapshot.store import FoundVersion, read_sealed
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

_log = log.logger("strategies")


class SlicePromise(ShardPromise, frozen=True, kw_only=True):
    """What one rank of a group gets of a version for one rank; `of` is the seal of the version's manifest."""

    FORMAT: ClassVar[str] = "wsm.slice-promise"

    of: Digest


def _name(seal: str, rank: int, ranks: int) -> str:
    return f"slices.{seal}.tp{rank}of{ranks}.json"


def slice_promise(
    found: FoundVersion, publication: VersionManifest, rank: int, ranks: int
) -> Mapping[TensorSpec, str]:
    """Return the digest of each tensor of a rank; empty if nothing says them. Blocks.

    A file that cannot be used counts as none, with a warning in the log: whole tensors prove more.
    """
    name = _name(publication.seal, rank, ranks)
    try:
        promise = read_sealed(found.directory, name, SlicePromise)
        if promise is None or promise.of != publication.seal:
            return {}
        promise.require(publication.version, rank, ranks, where=found.directory.locate(name))
    except BadInputError as error:
        _log.warning("snapshot.slices_unusable", file=found.directory.locate(name), error=str(error))
        return {}
    return {spec: digest for spec, digest, _ in promise.tensors}


class SliceDigests:
    """The digests of one tensor on all ranks of a group, fed with the whole tensor from its first byte on.

    Parameters
    ----------
    spec : TensorSpec
        The whole tensor.
    placement : Placement
        How it lies.
    ranks : int
        Of the group.
    """

    def __init__(self, spec: TensorSpec, placement: Placement, ranks: int) -> None:
        self.spec = spec
        self._placement = placement
        axis = placement.axis if isinstance(placement, Split) else 0
        self._unit = math.prod(spec.shape[axis + 1 :]) * ITEM_BYTES[spec.dtype]
        extent = spec.shape[axis] if spec.shape else 1
        self.row_bytes = extent * self._unit
        self._runs = [runs(spec.name, placement, spec.shape, rank, ranks) for rank in range(ranks)]
        # Several ranks may hold the same slice, and what is not cut has the digest of the whole.
        cut = {each for each in self._runs if each not in ((), (AxisRun(0, extent),))}
        self._digests = {each: running_digest() for each in cut if spec.nbytes}
        self._position = 0

    def update(self, data: memoryview) -> None:
        """Take in the next bytes of the whole tensor."""
        begin, self._position = self._position, self._position + len(data)
        if not self._digests:
            return
        rows, rest = divmod(len(data), self.row_bytes)
        if rows > 1 and not rest and begin % self.row_bytes == 0:
            self._update_rows(data, rows)
            return
        while begin < self._position:
            row_begin = begin - begin % self.row_bytes
            end = min(row_begin + self.row_bytes, self._position)
            first = self._position - len(data)
            for found, digest in self._digests.items():
                for run in found:
                    low = max(begin, row_begin + run.begin * self._unit)
                    high = min(end, row_begin + (run.begin + run.length) * self._unit)
                    if low < high:
                        digest.update(data[low - first : high - first])
            begin = end

    def _update_rows(self, data: memoryview, rows: int) -> None:
        import numpy as np  # noqa: PLC0415 - commands start faster without it

        block = np.frombuffer(data, np.uint8).reshape(rows, self.row_bytes)
        for found, digest in self._digests.items():
            pieces = [
                block[:, run.begin * self._unit : (run.begin + run.length) * self._unit] for run in found
            ]
            gathered = np.concatenate(pieces, axis=1)
            digest.update(gathered.reshape(-1).data)

    def of_rank(self, rank: int, whole: str) -> PromisedTensor | None:
        """Return what a rank holds; None if it holds nothing of it. `whole`: the digest of the whole."""
        held = self._runs[rank]
        shape = local_shape(self.spec.name, self._placement, self.spec.shape, rank, len(self._runs))
        if shape is None:
            return None
        digest = self._digests[held].hexdigest() if held in self._digests else whole
        return PromisedTensor(TensorSpec(self.spec.name, self.spec.dtype, shape), digest)


def write_slice_promises(
    directory: Path,
    publication: VersionManifest,
    tensors: Sequence[tuple[SliceDigests, str]],
    ranks: int,
    *,
    durable: bool,
) -> None:
    """Write one file per rank into the directory of a version that no reader sees yet. Blocks.

    Parameters
    ----------
    directory : Path
        Where the version's manifest lies.
    publication : VersionManifest
        That manifest.
    tensors : sequence of (SliceDigests, str)
        Each tensor of the version, with the digest of all of it.
    ranks : int
        Of the group.
    durable : bool
        Whether the files must survive a power cut.

    Raises
    ------
    StorageError
        If the file system refuses.
    """
    for rank in range(ranks):
        held = [each for slices, whole in tensors if (each := slices.of_rank(rank, whole)) is not None]
        if not held:
            continue
        promise = SlicePromise.with_tensors(
            held,
            version=publication.version,
            rank=rank,
            world_size=ranks,
            publication=publication.publication,
            of=publication.seal,
        )
        path = directory / _name(publication.seal, rank, ranks)
        with storing(path):
            write_new(path, promise.encode(), durable=durable)
