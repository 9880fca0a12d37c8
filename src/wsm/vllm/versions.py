"""A version as vLLM's loaders take it: a whole checkpoint, held open, digested whenever it is read.

Theory of operation
-------------------
Every rank's loaders read the whole checkpoint and cut their part out of it. So no copy is kept: a version is
its open files, and the digests of its tensors as they were staged. What is deleted meanwhile can still be
read; what is written in place meanwhile is found, because each tensor is digested again as a loader gets it.

A version comes from a directory that a trainer has written, below declared roots, or from a store where it
was published for one rank, with the digests that its publisher promised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wsm.errors import BadInputError, RefusedError
from wsm.strategies.adopt.checkpoint import open_checkpoint
from wsm.strategies.adopt.checkpoint_files import CheckpointFiles
from wsm.strategies.applier.coverage import check_coverage
from wsm.strategies.digest import digest_of, running_digest, shard_digest
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.promise import PromisedShard, Publication
from wsm.strategies.tensor import TensorSpec

_CHUNK_BYTES = 1 << 21


class VersionPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a version is, and what must be true of it; goes to the workers as plain values.

    `path`: a directory below `roots`; else the version is looked for in `store`. `digest`: what the version
    must have, as every group that loads it from a store says it; None: nothing was promised.
    """

    version: str
    path: str | None = None
    roots: list[str] = []
    store: str | None = None
    digest: str | None = None


@dataclass
class HeldCheckpoint:
    """The tensors of a version, its files held open until :meth:`close`.

    `published`: the digest that its publication has in a store; None: it lies in none. `digests`: of the
    tensors, in their order; empty until :meth:`stage`. `digest`: of the version, as every group that loads it
    from a store says it.
    """

    place: VersionPlace
    tensors: Sequence[OfferedTensor]
    published: str | None = None
    digests: list[str] = field(default_factory=list)
    digest: str = ""
    _open: ExitStack = field(default_factory=ExitStack)

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
                opened = CheckpointFiles(place.store).open(place.version, 0, UNOBSERVED)
                offer = stack.enter_context(opened)
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
        nbytes = sum(tensor.spec.nbytes for tensor in self.tensors)
        about = {"version": self.place.version, "digest": self.digest}
        return {**about, "tensors": len(self.tensors), "bytes": nbytes}

    @property
    def layout(self) -> dict[str, TensorSpec]:
        """The tensors without their bytes, by name."""
        return {tensor.spec.name: tensor.spec for tensor in self.tensors}

    def stage(self, layout: Mapping[str, TensorSpec] | None, is_dropped: Callable[[], bool]) -> None:
        """Read all tensors and hold them against what was promised. Blocks; gives up if `is_dropped`.

        `layout`: the tensors that a version must have, and no others; None: unknown.

        Raises
        ------
        BadInputError
            If it has other tensors (``not-covered``, ``dtype-mismatch``, ``shape-mismatch``), or a digest is
            another (``digest-mismatch``).
        RefusedError (``dropped``)
            If it is not wanted any more.
        """
        if layout is not None:
            check_coverage([(tensor.spec, tensor.origin) for tensor in self.tensors], layout)
        found: list[str] = []
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        for tensor in self.tensors:
            digest = running_digest()
            for offset in range(0, tensor.spec.nbytes, _CHUNK_BYTES):
                if is_dropped():
                    raise RefusedError("the version is not wanted any more", code="dropped")
                chunk = buffer[: min(_CHUNK_BYTES, tensor.spec.nbytes - offset)]
                tensor.read_into(offset, chunk)
                digest.update(chunk)
            found.append(_checked(tensor, digest.hexdigest(), tensor.digest))
        specs = [tensor.spec for tensor in self.tensors]
        # What is in no store has the digest that it would have once it was adopted under this label.
        shard = PromisedShard(content_digest=shard_digest(zip(specs, found, strict=True)))
        adopted = Publication(version=self.place.version, publication="", shards=(shard,))
        whole, promised = self.published or adopted.group_digest, self.place.digest
        if promised not in (None, whole):
            raise BadInputError(
                f"version {self.place.version} is not what was promised: digest {whole} instead of "
                f"{promised}; a version means one content, so publish this one under a name of its own",
                code="digest-mismatch",
                version=self.place.version,
                expected=promised,
                actual=whole,
                unfit=True,
            )
        self.digests, self.digest = found, whole

    def read(self) -> Iterator[tuple[TensorSpec, bytearray]]:
        """Yield each tensor with its bytes, which are the caller's. Blocks.

        Raises
        ------
        DigestMismatchError
            If they are not what was staged.
        """
        for tensor, digest in zip(self.tensors, self.digests, strict=True):
            data = bytearray(tensor.spec.nbytes)
            tensor.read_into(0, memoryview(data))
            _checked(tensor, digest_of(data), digest)
            yield tensor.spec, data

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._open.close()


class StagedRead:
    """A version that is found, read and verified in a thread, while the worker goes on to serve.

    `held`: set once it is verified. `error`: what went wrong; both None: it is still read.
    """

    def __init__(self, place: VersionPlace, layout: Mapping[str, TensorSpec] | None) -> None:
        self.held: HeldCheckpoint | None = None
        self.error: Exception | None = None
        self._dropped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=[place, layout], daemon=True)
        self._thread.start()

    def _read(self, place: VersionPlace, layout: Mapping[str, TensorSpec] | None) -> None:
        held: HeldCheckpoint | None = None
        try:
            held = HeldCheckpoint.found(place)
            held.stage(layout, self._dropped.is_set)
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


def _checked(tensor: OfferedTensor, found: str, expected: str | None) -> str:
    if expected not in (None, found):
        raise DigestMismatchError(
            tensor=tensor.spec.name, origin=tensor.origin, expected=str(expected), actual=found
        )
    return found
