"""A version as vLLM's loaders take it: a whole checkpoint, held open, digested whenever it is read.

Theory of operation
-------------------
Every rank's loaders read the whole checkpoint and cut their part out of it. So a version is read and digested
once per node, into memory that its ranks share (:mod:`.node_copy`): what becomes of the files then is no
matter. Where there is no room for that, a version is its open files, and the digests of its tensors as they
were staged. What is deleted meanwhile can still be read; what is written in place meanwhile is found, because
each tensor is digested again as a loader gets it.

A version comes from a directory that a trainer has written, below declared roots, or from a store where it
was published for one rank, with the digests that its publisher promised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wsm.actions.backends.memory import available_bytes
from wsm.errors import BadInputError, RefusedError, UnfitError
from wsm.strategies.adopt.checkpoint import open_checkpoint
from wsm.strategies.adopt.checkpoint_files import CheckpointFiles
from wsm.strategies.applier.coverage import check_coverage
from wsm.strategies.conversation import Wanted
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.promise import PromisedShard, Publication
from wsm.strategies.tensor import TensorSpec
from wsm.vllm.node_copy import NodeCopy, read_digest

#: What an operator, who reads it, is to do where tensors are others.
_FIX = "update to a version of the model that vLLM was started with, with all its tensors and no others"


class VersionPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a version is, and what must be true of it; goes to the workers as plain values.

    `path`: a directory below `roots`; else the version is looked for in `store`. `digest`: what the version
    must have, as every group that loads it from a store says it; None: nothing was promised. `pushed`: it
    lies nowhere, and a trainer brings it; `over`: only what changes, to the content of that digest.
    """

    version: str
    path: str | None = None
    roots: list[str] = []
    store: str | None = None
    digest: str | None = None
    pushed: bool = False
    over: str | None = None


class EngineTerms(msgspec.Struct, frozen=True):
    """What every rank is told once, by its server.

    `memory_bytes`: how much of a node's memory versions may take, all in all; None: half of what is free when
    a version is read; 0: nothing, and files are read where they lie. `keep_previous`: whether what serves
    stays in memory, so that it can be loaded again although its files were written over. `fingerprints`:
    whether a load is held against the parameters that it made of the same version before; it takes longer.
    """

    memory_bytes: int | None = None
    keep_previous: bool = False
    fingerprints: bool = False

    def room_bytes(self, kept: HeldCheckpoint | None) -> int:
        """Return how many bytes the next version may take beside what is kept. Reads files of the kernel."""
        if self.memory_bytes is None:
            return (available_bytes() or 0) // 2
        return self.memory_bytes - (kept.memory_bytes if kept else 0)


@dataclass
class HeldCheckpoint:
    """The tensors of a version, its files held open until :meth:`close`.

    `published`: the digest that its publication has in a store; None: it lies in none. `digests`: of the
    tensors, in their order; empty until :meth:`stage`. `digest`: of the version, as every group that loads it
    from a store says it. `read_bytes`: how many this process has read to know that.
    """

    place: VersionPlace
    tensors: Sequence[OfferedTensor]
    published: str | None = None
    read_bytes: int = 0
    digests: list[str] = field(default_factory=list)
    digest: str = ""
    _open: ExitStack = field(default_factory=ExitStack)
    _copy: NodeCopy | None = None

    @classmethod
    def found(cls, place: VersionPlace) -> HeldCheckpoint:
        """Open a version. Blocks on metadata only.

        Raises
        ------
        WsmError
            If there is none, it is no whole checkpoint, or it lies outside the roots.
        """
        published: str | None = None
        with ExitStack() as stack:
            if place.path is not None:
                parts = stack.enter_context(open_checkpoint(place.path, place.roots)).parts
                tensors = [
                    OfferedTensor(spec, part.path, read_into)
                    for part in parts
                    for spec, read_into in part.content.readers()
                ]
            elif place.store is not None:
                wanted = Wanted(0, None, place.version, look=False)
                offer = stack.enter_context(CheckpointFiles(place.store).open(wanted, UNOBSERVED))
                tensors, published = list(offer.known or ()), offer.manifest_digest
                if any(tensor.check_chunk for tensor in tensors):
                    problem = f"version {place.version} was published in parts for several ranks"
                    fix = "adopt or publish it whole, as vLLM's loaders take it"
                    raise RefusedError(f"{problem}; {fix}", code="not-whole", version=place.version)
            else:
                raise BadInputError(
                    f"version {place.version} has no place: give its path, or declare a store",
                    code="no-place",
                    version=place.version,
                )
            return cls(place, tensors, published, _open=stack.pop_all())

    def said(self) -> dict[str, Any]:
        """Return what a receipt says of it."""
        memory = {"read_bytes": self.read_bytes, "memory_bytes": self.memory_bytes}
        return said_of(self.place, self.digest, [tensor.spec for tensor in self.tensors]) | memory

    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes of the node's memory, which its ranks share; 0: it is read from its files."""
        return self._copy.nbytes if self._copy else 0

    @property
    def layout(self) -> dict[str, TensorSpec]:
        """The tensors without their bytes, by name."""
        return {tensor.spec.name: tensor.spec for tensor in self.tensors}

    def stage(
        self,
        layout: Mapping[str, TensorSpec] | None,
        copy_name: str,
        room_bytes: int,
        is_dropped: Callable[[], bool],
    ) -> None:
        """Read all tensors and hold them against what was promised. Blocks; gives up if `is_dropped`.

        Parameters
        ----------
        layout : mapping or None
            The tensors that a version must have, and no others; None: unknown.
        copy_name : str
            What the ranks of this engine call this version's copy in memory.
        room_bytes : int
            How large that may be; else the tensors are read from their files.
        is_dropped : callable
            Whether no update waits for it any more.

        Raises
        ------
        BadInputError
            If it has other tensors (``not-covered``, ``dtype-mismatch``, ``shape-mismatch``), or a digest is
            another (``digest-mismatch``).
        RefusedError (``dropped``)
            If it is not wanted any more.
        """
        if layout is not None:
            check_coverage([(tensor.spec, tensor.origin) for tensor in self.tensors], layout, fix=_FIX)
        copy = NodeCopy(copy_name, self.tensors)
        self._copy = copy if copy.fill(room_bytes, is_dropped) else None
        found = copy.digests or [read_digest(tensor, is_dropped) for tensor in self.tensors]
        if copy.is_reader or self._copy is None:
            self.read_bytes = sum(tensor.spec.nbytes for tensor in self.tensors)
        for tensor, digest in zip(self.tensors, found, strict=True):
            _require_digest(tensor, digest, tensor.digest)
        specs = (tensor.spec for tensor in self.tensors)
        self.digest = proven_digest(self.place, zip(specs, found, strict=True), self.published)
        self.digests = found

    def read(self) -> Iterator[tuple[TensorSpec, bytearray | memoryview]]:
        """Yield each tensor with its bytes, which are the caller's. Blocks.

        Raises
        ------
        DigestMismatchError
            If they are not what was staged.
        """
        for index, (tensor, digest) in enumerate(zip(self.tensors, self.digests, strict=True)):
            if self._copy is not None:
                yield tensor.spec, self._copy.tensor(index)
                continue
            data = bytearray(tensor.spec.nbytes)
            tensor.read_into(0, memoryview(data))
            _require_digest(tensor, digest_of(data), digest)
            yield tensor.spec, data

    def is_on_all_ranks(self) -> None:
        """Take in that all ranks have staged it."""
        if self._copy is not None:
            self._copy.take_name_away()

    def give_memory_back(self) -> None:
        """Be its files alone from now on. Idempotent. A thread unmaps the memory: no step waits for that."""
        if self._copy is not None:
            self._copy.take_name_away()
            threading.Thread(target=self._copy.close, daemon=True).start()
            self._copy = None

    def close(self) -> None:
        """Close the files, and give memory back. Idempotent."""
        self.give_memory_back()
        self._open.close()


class StagedRead:
    """A version that is found, read and verified in a thread, while the worker goes on to serve.

    `held`: set once it is verified. `error`: what went wrong; both None: it is still read.
    """

    def __init__(
        self, place: VersionPlace, layout: Mapping[str, TensorSpec] | None, copy_name: str, room_bytes: int
    ) -> None:
        self.held: HeldCheckpoint | None = None
        self.error: Exception | None = None
        self._dropped = threading.Event()
        how = layout, copy_name, room_bytes, self._dropped.is_set
        self._thread = threading.Thread(target=self._read, args=(place, how), daemon=True)
        self._thread.start()

    def _read(self, place: VersionPlace, how: tuple[Any, ...]) -> None:
        held: HeldCheckpoint | None = None
        try:
            held = HeldCheckpoint.found(place)
            held.stage(*how)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to the next question
            self.error = error
            if held is not None:
                held.close()
        else:
            self.held = held

    def drop(self) -> None:
        """End the thread, and close what it has opened."""
        self._dropped.set()
        self._thread.join()
        if self.held is not None:
            self.held.close()


def said_of(place: VersionPlace, digest: str, specs: Iterable[TensorSpec]) -> dict[str, Any]:
    """Return what a receipt says of any version."""
    sizes = [spec.nbytes for spec in specs]
    return {"version": place.version, "digest": digest, "tensors": len(sizes), "bytes": sum(sizes)}


def proven_digest(
    place: VersionPlace, tensors: Iterable[tuple[TensorSpec, str]], published: str | None = None
) -> str:
    """Return the digest of a version whose tensors have these digests.

    Raises
    ------
    BadInputError
        If it is not the promised one (``digest-mismatch``).
    """
    content = shard_digest(tensors)
    if place.over is not None:
        content = digest_of(f"{place.over}{content}".encode())
    # What is in no store has the digest that it would have once it was adopted under this label.
    shard = PromisedShard(content_digest=content)
    adopted = Publication(version=place.version, publication="", shards=(shard,))
    whole, promised = published or adopted.group_digest, place.digest
    if promised not in (None, whole):
        raise UnfitError(
            f"version {place.version} is not what was promised: digest {whole} instead of "
            f"{promised}; a version means one content: correct the digest, or call this one otherwise",
            code="digest-mismatch",
            version=place.version,
            expected=promised,
            actual=whole,
        )
    return whole


def _require_digest(tensor: OfferedTensor, found: str, expected: str | None) -> None:
    if expected not in (None, found):
        raise DigestMismatchError(
            tensor=tensor.spec.name, origin=tensor.origin, expected=str(expected), actual=found
        )
