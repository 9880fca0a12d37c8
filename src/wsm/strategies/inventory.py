"""What files and shared memory really hold: the digest of every tensor, read and computed, never believed.

It goes through the same strategies and the same digest as a load, so what it says of a shard is what a rank
that loads it reports. Nothing is applied; memory beside one chunk is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from wsm.strategies.applier.tensor_copy import Steps, digest_source
from wsm.strategies.digest import RunningDigest, shard_digest
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.files.part_file import open_part
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.registry import strategy_for
from wsm.strategies.tensor import TensorSpec


@dataclass(frozen=True)
class TensorDigest:
    """One tensor: what its bytes come to, and what another process promised they would (None: nothing was
    promised).

    `broken` says what is wrong with what it was cut from, where the promise is one of that.
    """

    spec: TensorSpec
    digest: str
    promised: str | None = None
    broken: str = ""

    @property
    def kept(self) -> bool:
        """Whether no promise is broken."""
        return not self.broken and self.promised in (None, self.digest)


@dataclass(frozen=True)
class Inventory:
    """One shard.

    Parameters
    ----------
    where : str
        What was looked at.
    rank : int or None
        Whose shard it is; None if it does not say.
    version : str or None
        The version that it proves to be.
    digest : str
        Digest of all tensors, as load reports and receipts have it.
    manifest_digest, publication : str or None
        Digest of what was published, and the publication; None without a manifest.
    tensors : tuple of TensorDigest or None
        Every tensor; None where only the digest of all is known.
    """

    where: str
    rank: int | None
    version: str | None
    digest: str
    manifest_digest: str | None = None
    tensors: tuple[TensorDigest, ...] | None = None
    publication: str | None = None


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs: ``only left``, ``only right``, ``dtype or shape``, or ``bytes``."""

    name: str
    how: str


def take_inventory(
    source: object,
    *,
    strategy: str,
    rank: int,
    version: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Read everything that a rank would load. Blocks; as long as a read takes.

    Parameters
    ----------
    source : object
        As for :func:`wsm.strategies.load.load`.
    strategy : str
        Its name.
    rank : int
        Whose shard the source is for.
    version : str, optional
        As for a load.
    progress : callable, optional
        ``progress(bytes read, bytes in all)`` after each tensor.

    Raises
    ------
    wsm.errors.BadInputError
        As a load does before the first byte, and if reading fails. Broken promises are no errors here.
    """
    with strategy_for(strategy, source).open(source, version, UNOBSERVED) as offer:
        rows = tuple(_read_all(offer.tensors, offer.nbytes or 0, progress))
        return Inventory(
            where=", ".join(offer.files[:1]),
            rank=rank,
            version=offer.version,
            digest=_digest(rows),
            manifest_digest=offer.manifest_digest,
            tensors=rows,
            publication=offer.publication,
        )


def inventory_of_file(path: Path, *, allow_pickle: bool = False) -> Inventory:
    """Read one file of tensors by itself, whatever lies beside it. Blocks.

    Raises
    ------
    wsm.errors.BadInputError
        If it is no such file, or a pickle that was not allowed.
    """
    with closing(SnapshotDirectory(str(path.parent))) as directory:
        part = open_part(directory, path.name, allow_pickle=allow_pickle)
        with closing(part):
            offered = [OfferedTensor(spec, part.path, read_into) for spec, read_into in part.readers()]
            rows = tuple(_read_all(offered, sum(tensor.spec.nbytes for tensor in offered), None))
    return Inventory(where=str(path), rank=None, version=None, digest=_digest(rows), tensors=rows)


def compare(left: Inventory, right: Inventory) -> list[TensorDifference] | None:
    """Return how two shards differ, tensor by tensor; None if only their digests are known, and differ."""
    if left.digest == right.digest:
        return []
    if left.tensors is None or right.tensors is None:
        return None
    ours = {row.spec.name: row for row in left.tensors}
    theirs = {row.spec.name: row for row in right.tensors}
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            found.append(TensorDifference(name, "only left"))
        elif name not in ours:
            found.append(TensorDifference(name, "only right"))
        elif ours[name].spec != theirs[name].spec:
            found.append(TensorDifference(name, "dtype or shape"))
        elif ours[name].digest != theirs[name].digest:
            found.append(TensorDifference(name, "bytes"))
    return found


def _read_all(
    tensors: Iterable[OfferedTensor], total: int, progress: Callable[[int, int], None] | None
) -> Iterable[TensorDigest]:
    done = 0
    for tensor in tensors:
        proof = None if tensor.check_chunk is None else _Proof(tensor.check_chunk)
        digest = digest_source(replace(tensor, digest=None, check_chunk=proof), Steps())
        done += tensor.spec.nbytes
        if progress is not None:
            progress(done, max(done, total))
        # What was cut out of proven tensors is what was promised; it has no digest of its own.
        promised, broken = (tensor.digest, "") if proof is None else (digest, proof.problem)
        yield TensorDigest(tensor.spec, digest, promised, broken)


class _Proof:
    """A source's own proof of what was read: where a load would end, it is noted."""

    def __init__(self, check_chunk: Callable[[int, RunningDigest], None]) -> None:
        self.problem = ""
        self._check_chunk = check_chunk

    def __call__(self, done: int, digest: RunningDigest) -> None:
        try:
            self._check_chunk(done, digest)
        except DigestMismatchError as error:
            self.problem = str(error)


def _digest(rows: Iterable[TensorDigest]) -> str:
    return shard_digest((row.spec, row.digest) for row in rows)
