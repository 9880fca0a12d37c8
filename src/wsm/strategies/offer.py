"""What a strategy yields, whatever its transport: named tensors with a way to read their bytes.

An offer is made from headers and manifests alone; no tensor byte has moved when it exists. The applier
checks it against the target and only then reads. A stream that says what it brings only as it brings it
makes an undeclared offer: the applier checks each tensor before it writes it, and what is missing at the
end. Knows no files and no targets.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from wsm.errors import InternalError
from wsm.labels import recorded_version
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.digest import RunningDigest
from wsm.strategies.errors import empty_snapshot
from wsm.strategies.tensor import TensorSpec


class ManifestScope(enum.Enum):
    """What a manifest digest speaks for, and so with whose it may be compared.

    GROUP: a version as it was published; equal on all ranks that load it, of whatever group. RANK: this
    rank's shard alone. LOADED: there was no manifest; the digest was computed from what arrived.
    """

    GROUP = "group"
    RANK = "rank"
    LOADED = "loaded"


@dataclass(slots=True)
class OfferedTensor:
    """One tensor that may be read. Not frozen, because that takes longer than all else; no code changes it.

    Parameters
    ----------
    spec : TensorSpec
        What its header says.
    origin : str
        The file or peer that it comes from, for messages.
    read_into : callable
        ``read_into(offset, destination)`` fills a writable memoryview from `offset` of its bytes on. Blocks.
    digest : str or None
        xxh3-128 that its bytes must have; None if none was promised (yet).
    piece_bytes : int
        If not 0, no read crosses a multiple of it: the source brings the tensor in pieces of that size.
    check_chunk : callable or None
        ``check_chunk(bytes so far, running digest of them)`` is called after every chunk, in order. It raises
        :class:`wsm.strategies.errors.DigestMismatchError` if they are not what the source promised, and so
        is the promise of sources that know digests only when the bytes are there.
    memory : callable or None
        Returns the tensor's bytes (writable, format ``B``) in memory that may be kept for good: it stays
        valid as long as the view, and no other process writes to it. None where bytes have to be copied.
    stands : bool
        Whether the target holds these very bytes already, digested for this load: they are left as they are.
    data : memoryview or None
        The bytes where they lie, for a consumer that looks at them before it asks for the next tensor; None
        where they have to be read.
    finite : bool
        Whether NaN and infinity in it are refused. Pieces must hold whole elements then.
    repeats : bool
        Set by the applier, where the target has the tensor under another name that came before.
    """

    spec: TensorSpec
    origin: str
    read_into: Callable[[int, memoryview], None]
    digest: str | None = None
    piece_bytes: int = 0
    check_chunk: Callable[[int, RunningDigest], None] | None = None
    memory: Callable[[], memoryview] | None = None
    stands: bool = False
    finite: bool = False
    repeats: bool = False
    data: memoryview | None = None

    @classmethod
    def of_bytes(
        cls, spec: TensorSpec, origin: str, data: memoryview, digest: str | None = None
    ) -> OfferedTensor:
        """Offer bytes that are in memory already (flat, format ``B``) and are copied from there."""

        def read_into(offset: int, destination: memoryview) -> None:
            copy_bytes(data[offset : offset + len(destination)], destination)

        return cls(spec, origin, read_into, digest)


def not_to_be_read(_offset: int, _destination: memoryview) -> None:
    """Stand in for ``read_into`` where tensors are offered to be looked at."""
    raise InternalError("a tensor was only to be looked at and is read")


@dataclass(frozen=True)
class Offer:
    """Everything that one load will apply, in the order in which it is read fastest.

    Where `declared` is false, `tensors` is read once, one tensor after the other, while the context of
    :meth:`wsm.strategies.strategy.Strategy.open` is open: a tensor is applied and verified before the next
    one is asked for, so that memory which it was offered from may be used again then. Errors of the iterator
    end the load. Such a tensor has ``memory`` to keep only where that is never used again.

    Parameters
    ----------
    version : str or None
        The version that the source proves to hold; None if nothing there says so.
    tensors : iterable of OfferedTensor
        The tensors; names may repeat, which the applier refuses. A tuple if `declared`, else an iterator.
    files : tuple of str
        Paths (or peers) that they come from.
    manifest_digest : str or None
        Digest of the manifest; None without one.
    manifest_scope : ManifestScope
        Whom that digest speaks for.
    publication : str or None
        The publication that it is of, which is the same on all ranks that load one; None if nothing says so.
    ignored : tuple of str
        Names that were looked at and left out, each with a warning in the log.
    peak_extra_bytes : int
        The most tensor bytes that are held beside the target's at any time.
    thread_bytes : int
        Those that each thread which reads holds besides.
    read_bytes : int or None
        Bytes that are read for the tensors, where that is more than they have; None if it is not.
    declared : bool
        Whether every name, dtype and shape is known before the first byte. If not, they are checked as they
        come, and what is wrong with any but the first leaves the target touched.
    parallel : bool
        Whether ``read_into`` of different tensors may be called from several threads at the same time, and
        in any order. Never for an undeclared offer.
    promised : tuple of TensorSpec or None
        What an undeclared stream has promised to bring, in whatever order; checked as if it were declared.
        None where no manifest promised anything.
    waited_s : callable or None
        Returns the seconds that the load has waited for the sender of the tensors, to be asked at its end.
    chunk_tensors : int or None
        Set where the tensors are a checkpoint's, for the loaders of the models: how many an auxiliary model
        gets at once. None where they are the target's own.
    whole : bool
        Whether an undeclared stream is collected in host memory before a target is touched that serves.
    unwritten : sequence of str
        Patterns of the names of parameters that the models' loaders may leave unwritten, in whole or in part.
    """

    version: str | None
    tensors: Iterable[OfferedTensor]
    files: tuple[str, ...]
    manifest_digest: str | None
    manifest_scope: ManifestScope
    publication: str | None = field(default=None, kw_only=True)
    ignored: tuple[str, ...] = ()
    peak_extra_bytes: int = 0
    thread_bytes: int = 0
    declared: bool = True
    parallel: bool = False
    read_bytes: int | None = None
    promised: tuple[TensorSpec, ...] | None = None
    waited_s: Callable[[], float] | None = None
    chunk_tensors: int | None = None
    whole: bool = False
    unwritten: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Take a number for its digits, as others may say it; refuse an offer of nothing."""
        if self.tensors == () or self.promised == ():
            raise empty_snapshot(where=", ".join(self.files))
        if self.version is not None:
            object.__setattr__(self, "version", recorded_version(self.version))

    def read_by(self, threads: int) -> Offer:
        """Return the offer with what so many threads hold counted in, if it may be read by more than one."""
        beside = self.thread_bytes * (threads if self.parallel else 1)
        return replace(self, peak_extra_bytes=self.peak_extra_bytes + beside, thread_bytes=0)

    @property
    def known(self) -> tuple[OfferedTensor, ...] | None:
        """All tensors, if they are known before they come."""
        return tuple(self.tensors) if self.declared else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of all tensors, if they are known before they come."""
        return sum(tensor.spec.nbytes for tensor in self.tensors) if self.declared else None
