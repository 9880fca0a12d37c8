"""A pickle file as a part of a shard, once its reading was allowed; in memory while it is open."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.files.paddle_state import read_state
from wsm.strategies.tensor import TensorSpec


class PickleFile:
    """A pickle file, read whole.

    Parameters
    ----------
    descriptor : int
        Open for reading; closed by the constructor.
    path : str
        Its name, for messages.

    Raises
    ------
    PaddleMissingError, BadInputError
        If it cannot be read.
    """

    metadata: Mapping[str, str] = {}

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        try:
            self.nbytes = os.fstat(descriptor).st_size
            self._tensors = read_state(descriptor, file=path)
        finally:
            os.close(descriptor)
        self.memory_bytes = sum(spec.nbytes for spec, _ in self._tensors.values())

    def specs(self) -> Iterator[TensorSpec]:
        """Iterate over its tensors."""
        return (spec for spec, _ in self._tensors.values())

    def readers(self) -> Iterator[tuple[TensorSpec, Callable[[int, memoryview], None]]]:
        """Iterate over its tensors, each with ``read_into(offset in the tensor, destination)``."""
        for spec, data in self._tensors.values():
            yield spec, partial(_copy, data)

    def data(self, name: str) -> memoryview:
        """Return the bytes of one tensor."""
        return self._tensors[name][1]

    def close(self) -> None:
        """Let the tensors go. Idempotent."""
        self._tensors = {}


def _copy(data: memoryview, offset: int, destination: memoryview) -> None:
    copy_bytes(data[offset : offset + len(destination)], destination)
