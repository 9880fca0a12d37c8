"""What a stream of tensors promises to bring, as a tensor of its own that travels first.

A transport that moves named tensors and nothing else still carries the promise that a load is checked
against: version, rank, and every tensor's dtype, shape and digest, sealed. The trainer adds it with
:func:`with_manifest`; the rank finds it by its name. Knows no transports and no targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from wsm.labels import checked_version
from wsm.strategies import errors
from wsm.strategies.digest import digest_of
from wsm.strategies.errors import trainer_tensor
from wsm.strategies.finite import check_finite
from wsm.strategies.promise import PromisedShard, PromisedTensor, Publication, ShardPromise, name_digest
from wsm.strategies.trainer.tensors import tensor_of
from wsm.typed import Count, CountFrom0, typed

#: The manifest's name in the stream; it sorts before any name that a model would use.
MANIFEST_TENSOR = "!wsm.manifest"


class StreamManifest(ShardPromise, frozen=True, kw_only=True):
    """The manifest of one rank's stream.

    Parameters
    ----------
    publication : str
        Whatever the trainer's ranks agree on for one publication; empty if they agreed on nothing.
    whole : bool
        Whether it is the whole model, which every rank's loaders cut for themselves: rank 0 of one, for all.
    """

    FORMAT: ClassVar[str] = "wsm.stream-manifest"
    LAYOUT: ClassVar[int] = 2
    DERIVED: ClassVar[Sequence[str]] = ("content_digest",)

    whole: bool = False

    @cached_property
    def by_name(self) -> Mapping[str, PromisedTensor]:
        """The tensors by their names."""
        return {tensor.spec.name: tensor for tensor in self.tensors}

    @cached_property
    def group_digest(self) -> str | None:
        """Digest of what all ranks' manifests of one publication have in common, and no others.

        Of the publication, where every rank gets the same tensors; else of its name. None if it has none:
        a trainer that came back may have sent something else as the same version to another rank.
        """
        if self.world_size == 1:
            shard = PromisedShard(content_digest=self.placed_digest)
            return Publication(version=self.version, publication="", shards=(shard,)).group_digest
        if not self.publication:
            return None
        return name_digest(self.version, self.publication, self.world_size)

    def check(self) -> None:
        """See that it does not list itself; its reader refuses an empty one."""
        if self.rows:
            super().check()
        if any(name == MANIFEST_TENSOR for name, _, _ in self.rows):
            raise msgspec.ValidationError("it lists itself")
        if self.whole and self.world_size != 1:
            raise msgspec.ValidationError(f"the whole model is said to be of {self.world_size} ranks")


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
    BadInputError
        If `version` is none, or there is something else than tensors, or nothing, or a tensor is not finite
        although it is to be.
    BadInputError
        If a shard of several comes without its publication's name.
    """
    version = checked_version(version)
    if (rank is None) is not (world_size is None):
        raise trainer_tensor(tensor=MANIFEST_TENSOR, problem="it is given a rank or a world size alone")
    if not state or MANIFEST_TENSOR in state:
        problem = "there is no other tensor" if not state else "it is in the state dict already"
        raise trainer_tensor(tensor=MANIFEST_TENSOR, problem=problem)
    if world_size is not None and world_size > 1 and not publication:
        raise errors.incomplete_publication(
            version=version,
            problem=f"rank {rank} of {world_size} needs the publication's name, the same on all ranks and "
            "new each time, or ranks would load what is not of one publication",
        )
    tensors = []
    for name, value in state.items():
        spec, data = tensor_of(name, value)
        if finite:
            check_finite(spec, data, rank=rank)
        tensors.append(PromisedTensor(spec, digest_of(data)))
    manifest = StreamManifest.with_tensors(
        tensors,
        version=version,
        rank=rank or 0,
        world_size=world_size or 1,
        publication=publication,
        finite=finite,
        whole=rank is None,
    )
    import numpy as np  # noqa: PLC0415 - the command line's quick questions do without

    return {MANIFEST_TENSOR: np.frombuffer(manifest.encode(), np.uint8), **state}
