"""Writing one rank's delta: what has changed, block by block, and the manifest beside it.

Base and new tensors are read once, side by side, and digested in the same pass; a block of each is held at a
time. Makes nothing visible: :mod:`wsm.strategies.delta.publish` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies import errors as strategies_errors
from wsm.strategies.applier.finite import check_finite
from wsm.strategies.delta import errors as delta_errors
from wsm.strategies.delta.blocks import BLOCK_BYTES, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Block, BlockKind
from wsm.strategies.delta.names import blocks_name, rank_manifest_name
from wsm.strategies.delta.shard import DeltaShard, DeltaTensor
from wsm.strategies.digest import running_digest
from wsm.strategies.errors import StorageError
from wsm.strategies.files.atomic_file import write_all, write_new
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec


@dataclass(frozen=True)
class DeltaPlan:
    """Whose delta is written, and how.

    Parameters
    ----------
    version, base_version : str
        From which version to which it leads.
    rank, world_size : int
        Whose it is, of how many.
    publication : str
        What marks every file of this publication.
    block_bytes : int
        Bytes of a tensor that one block stands for.
    durable : bool
        Whether the files must survive a power cut once the call has returned.
    finite : bool
        Whether new tensors that hold NaN or infinity are refused, here and by every load.
    """

    version: str
    base_version: str
    rank: int
    world_size: int
    publication: str
    block_bytes: int = BLOCK_BYTES
    durable: bool = True
    finite: bool = False


def write_delta(
    directory: Path,
    specs: Sequence[TensorSpec],
    tensors: Iterable[OfferedTensor],
    base: Mapping[str, OfferedTensor],
    plan: DeltaPlan,
) -> DeltaShard:
    """Write the blocks of one rank's delta, then its manifest, into `directory`. Blocks.

    Nothing is written before base and new version are seen to be of one model.

    Parameters
    ----------
    directory : path
        Where no reader looks yet; it must exist and hold no delta of this rank.
    specs : sequence of TensorSpec
        What `tensors` will be, known before the first of them is there.
    tensors : iterable of OfferedTensor
        The new tensors.
    base : mapping of str to OfferedTensor
        The tensors of the base, by name.
    plan : DeltaPlan
        Whose delta it is.

    Raises
    ------
    BadInputError
        If base and new version have other tensors, dtypes or shapes.
    BadInputError
        If there is no tensor, or the plan is none.
    BadInputError
        If a tensor was promised by a digest, and is another one.
    TrainerTensorError
        If one is not finite although it is to be.
    StorageError
        If the file system refuses.
    RefusedError
        If what compresses is not installed.
    """
    _check_plan(specs, plan)
    _check_model(specs, base, plan.rank)
    path = directory / blocks_name(plan.rank)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            rows = tuple(_write(descriptor, tensor, base[tensor.spec.name], plan) for tensor in tensors)
            if plan.durable:
                os.fsync(descriptor)
            nbytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        shard = DeltaShard(
            version=plan.version,
            base_version=plan.base_version,
            rank=plan.rank,
            world_size=plan.world_size,
            publication=plan.publication,
            block_bytes=plan.block_bytes,
            nbytes=nbytes,
            tensors=rows,
            finite=plan.finite,
        )
        write_new(directory / rank_manifest_name(plan.rank), shard.encode(), durable=plan.durable)
    except OSError as error:
        raise StorageError(path=str(path), reason=error.strerror or str(error)) from error
    return shard


def _check_plan(specs: Sequence[TensorSpec], plan: DeltaPlan) -> None:
    problem = None
    if plan.version == plan.base_version:
        problem = "it cannot be its own base"
    elif not MIN_BLOCK_BYTES <= plan.block_bytes <= MAX_BLOCK_BYTES or plan.block_bytes % MIN_BLOCK_BYTES:
        problem = f"a block cannot stand for {plan.block_bytes} bytes"
    elif not specs:
        problem = f"the state dict of rank {plan.rank} is empty"
    if problem:
        raise strategies_errors.incomplete_publication(version=plan.version, problem=problem)


def _check_model(specs: Sequence[TensorSpec], base: Mapping[str, OfferedTensor], rank: int) -> None:
    ours, theirs = {spec.name: spec for spec in specs}, {name: row.spec for name, row in base.items()}
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        raise delta_errors.delta_of_other_model(rank=rank, tensors=different)


def _write(descriptor: int, tensor: OfferedTensor, base: OfferedTensor, plan: DeltaPlan) -> DeltaTensor:
    try:
        from wsm.strategies.delta import codec  # noqa: PLC0415 - needs an optional package
    except ImportError as error:
        raise delta_errors.zstandard_missing() from error
    spec = tensor.spec
    old = memoryview(bytearray(min(plan.block_bytes, spec.nbytes)))
    new = memoryview(bytearray(min(plan.block_bytes, spec.nbytes)))
    before, after, stored = running_digest(), running_digest(), running_digest()
    blocks: list[Block] = []
    for begin in range(0, spec.nbytes, plan.block_bytes):
        length = min(plan.block_bytes, spec.nbytes - begin)
        base.read_into(begin, old[:length])
        tensor.read_into(begin, new[:length])
        before.update(old[:length])
        after.update(new[:length])
        if plan.finite:
            check_finite(spec, new[:length], begin)
        block, data = codec.encode(old[:length], new[:length], ITEM_BYTES[spec.dtype])
        stored.update(data)
        write_all(descriptor, data)
        blocks.append(block)
    _check(base, before.hexdigest())
    _check(tensor, after.hexdigest())
    changed = any(block.kind is not BlockKind.SAME for block in blocks)
    return DeltaTensor(
        spec, before.hexdigest(), after.hexdigest(), stored.hexdigest(), tuple(blocks) if changed else ()
    )


def _check(tensor: OfferedTensor, digest: str) -> None:
    if tensor.digest is not None and tensor.digest != digest:
        raise delta_errors.bad_delta(
            file=tensor.origin,
            tensor=tensor.spec.name,
            problem=f"digest {digest} instead of {tensor.digest}",
        )
