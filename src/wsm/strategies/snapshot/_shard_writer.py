"""Writing one rank's shard: parts of a given size, and the manifest beside them.

Each tensor is digested in the pass that writes it. At most one tensor's bytes are held at a time, and only
if the trainer's own are not contiguous. Makes nothing visible: :mod:`wsm.strategies.snapshot.publish` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from wsm.strategies import errors
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.errors import StorageError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.atomic_file import write_new
from wsm.strategies.files.safetensors import file_order, write_safetensors
from wsm.strategies.promise import PromisedTensor, ShardIdentity
from wsm.strategies.snapshot.manifest import PartEntry, ShardManifest, part_metadata
from wsm.strategies.snapshot.placement import Placement, bad_placement, whole_shape
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import TrainerTensors, bytes_of, specs_of

#: Bytes of tensors in one part, unless a single tensor is larger.
PART_BYTES = 1 << 30


def write_shard(
    directory: Path,
    identity: ShardIdentity,
    tensors: TrainerTensors,
    *,
    device_id: int,
    part_bytes: int,
    durable: bool,
    placements: Mapping[str, Placement],
    finite: bool,
) -> ShardManifest:
    """Write the parts of one rank's shard, then its manifest. Blocks.

    Parameters
    ----------
    directory : path
        Where no reader looks yet; it must exist and hold no shard of this rank.
    identity : ShardIdentity
        Version, rank, number of ranks and publication.
    tensors : mapping
        The rank's state dict (:mod:`wsm.strategies.trainer.tensors`).
    device_id : int
        The device id in the file names.
    part_bytes : int
        Bytes of tensors in one part, unless a single tensor is larger.
    durable : bool
        Whether the files must survive a power cut once the call has returned.
    placements : mapping of str to Placement
        How each tensor lies on the ranks, for readers that are of another number; those of the tensors of
        other ranks may be among them. Empty: the version is for its own number of ranks alone.
    finite : bool
        Whether NaN and infinity are refused, here and by every load.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If a tensor is none, or not finite although it is to be.
    BadInputError
        If there is no tensor at all.
    BadInputError (``placement``)
        If a tensor is not placed although others are, or is not what its placement says.
    StorageError
        If the file system refuses.
    """
    specs = specs_of(tensors)
    _check_placements(specs, placements, identity)
    if not specs:
        raise errors.incomplete_publication(
            version=identity.version, problem=f"the state dict of rank {identity.rank} is empty"
        )
    base = snapshot_names.shard_base(identity.rank, device_id)
    parts: list[PartEntry] = []
    entries: list[PromisedTensor] = []
    for index, group in enumerate(cut_into_parts(specs, part_bytes)):
        path = directory / snapshot_names.part_name(base, index)
        data = (_bytes_of(tensors, spec, finite=finite) for spec in group)
        try:
            nbytes, digests = write_safetensors(path, group, data, part_metadata(identity), durable=durable)
        except OSError as error:
            raise StorageError(path=path, error=error) from error
        parts.append(PartEntry(path.name, nbytes, len(group)))
        entries += [
            PromisedTensor(spec, digest, placements.get(spec.name))
            for spec, digest in zip(group, digests, strict=True)
        ]
    manifest = ShardManifest.with_tensors(
        entries,
        version=identity.version,
        rank=identity.rank,
        world_size=identity.world_size,
        device_id=device_id,
        publication=identity.publication,
        parts=tuple(parts),
        finite=finite,
    )
    path = directory / manifest.name
    try:
        write_new(path, manifest.encode(), durable=durable)
    except OSError as error:
        raise StorageError(path=path, error=error) from error
    return manifest


def _bytes_of(tensors: TrainerTensors, spec: TensorSpec, *, finite: bool) -> memoryview:
    data = bytes_of(tensors, spec)
    if finite:
        check_finite(spec, data)
    return data


def _check_placements(
    specs: Sequence[TensorSpec], placements: Mapping[str, Placement], identity: ShardIdentity
) -> None:
    for spec in specs if placements else ():
        if spec.name not in placements:
            raise bad_placement(tensor=spec.name, problem="has no placement, although others have one")
        whole_shape(spec.name, placements[spec.name], spec.shape, identity.rank, identity.world_size)


def cut_into_parts(specs: Sequence[TensorSpec], part_bytes: int) -> list[list[TensorSpec]]:
    """Group tensors, in their order, into parts of at most `part_bytes`; a larger tensor gets its own."""
    parts: list[list[TensorSpec]] = []
    room = 0
    for spec in specs:
        if not parts or spec.nbytes > room:
            parts.append([])
            room = part_bytes
        parts[-1].append(spec)
        room -= spec.nbytes
    return [file_order(part) for part in parts]
