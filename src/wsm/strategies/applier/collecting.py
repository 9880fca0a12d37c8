"""What a stream brings, collected in host memory before the first byte of the model is touched.

A stream without a declaration is known only when it has ended, and what is wrong with any tensor but the
first would cost the weights that serve. No more is held than the model has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wsm.strategies.applier.memory_target import host_memory
from wsm.strategies.applier.tensor_copy import Steps, copy_tensor, digest_tensor
from wsm.strategies.offer import OfferedTensor


def collected(tensors: Iterable[OfferedTensor], steps: Steps) -> list[OfferedTensor]:
    """Return tensors that were checked against the model, verified, in memory that stays. Blocks.

    Parameters
    ----------
    tensors : iterable of OfferedTensor
        Each is read before the next one is asked for. What the iterator raises ends the load untouched.
    steps : Steps
        Follows the load.

    Raises
    ------
    DigestMismatchError, NotFiniteError
        If one is not what was promised; nothing was touched.
    """
    return [_read(tensor, steps) for tensor in tensors]


def _read(tensor: OfferedTensor, steps: Steps) -> OfferedTensor:
    steps.go_on()
    if tensor.memory is None:
        data = host_memory(tensor.spec.nbytes)
        digest = copy_tensor(tensor, data, steps)
    else:
        data = tensor.memory()
        digest = digest_tensor(tensor, data, steps)
    promised = tensor.digest is not None or tensor.check_chunk is not None
    read = OfferedTensor.of_bytes(tensor.spec, tensor.origin, data, digest if promised else None)
    return replace(read, memory=tensor.memory, repeats=tensor.repeats)
