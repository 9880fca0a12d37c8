"""What a stream of tensors promises to bring, as a tensor of its own that travels first.

A transport that moves named tensors and nothing else still carries the promise that a load is checked
against: version, rank, and every tensor's dtype, shape and digest, sealed. The trainer adds it with
:func:`with_manifest`; the rank finds it by its name. Knows no transports and no targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from wsm.labels import checked_version
from wsm.strategies import documents, errors
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.documents import SealedDocument
from wsm.strategies.errors import ManifestError, TrainerTensorError
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import tensor_of
from wsm.typed import Count, CountFrom0, typed

#: The manifest's name in the stream; it sorts before any name that a model would use.
MANIFEST_TENSOR = "!wsm.manifest"


@dataclass(frozen=True)
class StreamManifest(SealedDocument):
    """The manifest of one rank's stream.

    Parameters
    ----------
    version : str
        The version that it belongs to.
    rank, world_size : int or None
        Whose shard it is, of how many; both None where it is the whole model, which every rank's loaders cut
        for themselves.
    publication : str
        Whatever the trainer's ranks agree on for one publication; empty if they agreed on nothing.
    tensors : mapping of str to (TensorSpec, str)
        Each tensor with the xxh3-128 of its bytes in C order, by name.
    finite : bool
        Whether the trainer promises that there is neither NaN nor infinity in them; loads refuse both then.
    """

    FORMAT: ClassVar[str] = "wsm.stream-manifest"
    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"version", "rank", "world_size", "publication", "content_digest", "tensors", "finite"}
    )

    version: str
    rank: int | None
    world_size: int | None
    publication: str
    tensors: Mapping[str, tuple[TensorSpec, str]]
    finite: bool = False

    @cached_property
    def group_digest(self) -> str | None:
        """Digest of what all ranks' manifests of one publication have in common, and no others.

        Of the tensors, where every rank gets the same; else of the publication's name. None if it has none:
        a trainer that came back may have sent something else as the same version to another rank.
        """
        if self.rank is None or self.world_size == 1:
            return documents.content_digest({"version": self.version, "content": self.content_digest})
        if not self.publication:
            return None
        return documents.content_digest(
            {"version": self.version, "publication": self.publication, "world_size": self.world_size}
        )

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tensors alone: equal weights have an equal one."""
        return shard_digest(self.tensors.values())

    def _content(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "rank": self.rank,
            "world_size": self.world_size,
            "publication": self.publication,
            "content_digest": self.content_digest,
            "tensors": [
                {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "digest": digest}
                for spec, digest in self.tensors.values()
            ],
            **({"finite": True} if self.finite else {}),
        }

    @classmethod
    def decode(cls, data: bytes, *, peer: str) -> StreamManifest:
        """Parse the bytes of a manifest's tensor.

        Raises
        ------
        wsm.strategies.errors.ManifestError
            If they are damaged, of an unknown layout, or contradict themselves. Any bytes give this or a
            manifest.
        """
        file = f"the manifest from {peer}"
        reader = cls._unsealed(data, file=file)
        whole = reader.absent("rank") and reader.absent("world_size")
        rows = [(row.tensor(), row.digest("digest")) for row in reader.objects("tensors")]
        manifest = cls(
            version=reader.version(),
            rank=None if whole else reader.count("rank"),
            world_size=None if whole else reader.count("world_size"),
            publication=reader.text("publication"),
            tensors={spec.name: (spec, digest) for spec, digest in rows},
            finite=reader.promise("finite"),
        )
        if len(manifest.tensors) != len(rows):
            raise ManifestError(file=file, problem="it lists a tensor twice")
        if MANIFEST_TENSOR in manifest.tensors:
            raise ManifestError(file=file, problem="it lists itself")
        if manifest.rank is not None and manifest.rank >= (manifest.world_size or 0):
            raise ManifestError(
                file=file, problem=f"it is of rank {manifest.rank} of {manifest.world_size} ranks"
            )
        if reader.fields.get("content_digest") != manifest.content_digest:
            raise ManifestError(file=file, problem="its content_digest is not that of its tensors")
        return manifest


@typed
def with_manifest(
    state: Mapping[str, Any],
    *,
    version: str | int,
    rank: CountFrom0 | None = None,
    world_size: Count | None = None,
    publication: str = "",
    finite: bool = False,
) -> dict[str, Any]:
    """Return `state` with its manifest as the first tensor, for any transport that moves tensors.

    The trainer's side; reads every byte once, on this thread. The tensors must not change before they are
    sent.

    Parameters
    ----------
    state : mapping of str to tensor
        One rank's shard, or the whole model: paddle tensors, numpy arrays, contiguous buffers or
        ``(TensorSpec, buffer)`` pairs.
    version : str or int
        What it is.
    rank, world_size : int, optional
        Whose shard of how many; neither for the whole model.
    publication : str
        A name that is the same on all ranks of one publication, and never used for another one: ranks load
        together what has one name. Needed for a shard of several; draw it on one rank and broadcast it.
    finite : bool
        Refuse NaN and infinity here, and have every load refuse them.

    Returns
    -------
    dict
        The manifest as a numpy array of bytes, then the very tensors of `state`.

    Raises
    ------
    BadInputError, TrainerTensorError
        If `version` is none, or there is something else than tensors, or nothing, or a tensor is not finite
        although it is to be.
    BadInputError
        If a shard of several comes without its publication's name.
    """
    version = checked_version(version)
    if (rank is None) is not (world_size is None):
        raise TrainerTensorError(tensor=MANIFEST_TENSOR, problem="it is given a rank or a world size alone")
    if not state or MANIFEST_TENSOR in state:
        problem = "there is no other tensor" if not state else "it is in the state dict already"
        raise TrainerTensorError(tensor=MANIFEST_TENSOR, problem=problem)
    if world_size is not None and world_size > 1 and not publication:
        raise errors.incomplete_publication(
            version=version,
            problem=f"rank {rank} of {world_size} needs the publication's name, the same on all ranks and "
            "new each time, or ranks would load what is not of one publication",
        )
    tensors = {}
    for name, value in state.items():
        spec, data = tensor_of(name, value)
        if finite:
            check_finite(spec, data)
        tensors[name] = (spec, digest_of(data))
    manifest = StreamManifest(version, rank, world_size, publication, tensors, finite)
    import numpy as np  # noqa: PLC0415 - the command line's quick questions do without

    return {MANIFEST_TENSOR: np.frombuffer(manifest.encode(), np.uint8), **state}
