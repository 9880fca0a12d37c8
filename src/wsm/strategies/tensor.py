"""What one tensor of a model is, apart from its bytes: name, shape, dtype, size.

The dtype vocabulary is safetensors' own, because files, manifests and shards all speak it. No
numpy dtype is used for identity: numpy has no bfloat16 and no float8.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, Protocol, runtime_checkable

from msgspec import Meta

from wsm.errors import RefusedError
from wsm.typed import bad_keyword, require

#: Bytes per element of every dtype that wsm moves, under safetensors' names.
ITEM_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}

#: Further dtypes of the format: a file that has them is good, and wsm does not move it.
OTHER_DTYPES = frozenset(("C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"))

#: Where large data begins in a page of memory or of a file. Where a copy's target lies a few bytes further
#: into its page than its source, each load waits for an earlier store of the same twelve address bits (4K
#: aliasing), and the copy takes up to twice as long. Allocators put large memory 0 to 64 bytes into a page.
BEGIN_IN_PAGE = 1024

#: Where tensors that lie beside each other in shared memory begin: on a cache line, and no vector
#: instruction minds where one was adopted.
ALIGNMENT = 64

_MAX_DIMENSIONS = 64
_MAX_EXTENT = (1 << 63) - 1


def aligned(nbytes: int) -> int:
    """Return so many bytes up to where the next tensor may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class TensorReleasedError(RefusedError):
    """The bytes of a tensor were asked for while it holds no memory."""

    def __init__(self, *, tensor: str) -> None:
        super().__init__(f"tensor {tensor!r} is released and has no bytes; load weights first", tensor=tensor)


@dataclass(frozen=True, init=False)
class TensorSpec:
    """One tensor without its bytes.

    Parameters
    ----------
    name : str
        The model's own name for it.
    dtype : str
        A key of :data:`ITEM_BYTES`.
    shape : tuple of int
        Extents, outermost first; ``()`` is a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if (
            type(name) is not str
            or type(dtype) is not str
            or dtype not in ITEM_BYTES
            or type(shape) is not tuple
            or not is_shape(shape)
        ):
            require("TensorSpec()", _FIELDS, {"name": name, "dtype": dtype, "shape": shape})
            if len(shape) > _MAX_DIMENSIONS:
                needed = f"a list of at most {_MAX_DIMENSIONS} extents"
                raise bad_keyword(call="TensorSpec()", keyword="shape", value=shape, need=needed)
            shape = tuple(shape)
        # A frozen dataclass' own takes three times as long, and a model has ten thousand of these.
        fields = self.__dict__
        fields["name"] = name
        fields["dtype"] = dtype
        fields["shape"] = shape

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the tensor in C order."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def is_shape(value: object) -> bool:
    """Whether what a file or a peer says can be a tensor's shape: 64 extents of 63 bits at most.

    Nothing is multiplied before: the product of a million long integers takes minutes.
    """
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_DIMENSIONS:
        return False
    for extent in value:  # noqa: SIM110 - all() of a generator takes twice as long, for each of many tensors
        if type(extent) is not int or not 0 <= extent <= _MAX_EXTENT:
            return False
    return True


_FIELDS = {
    "name": str,
    "dtype": Literal[tuple(ITEM_BYTES)],
    "shape": tuple[Annotated[int, Meta(ge=0, le=_MAX_EXTENT)], ...],
}


class WeightTarget(Protocol):
    """What a load writes into: the tensors of one rank's model shard."""

    def specs(self) -> Mapping[str, TensorSpec]:
        """Name, shape and dtype of every tensor, tied ones once; known without any memory held."""
        ...

    def writable(self, name: str) -> memoryview:
        """Return the tensor's bytes (C order, writable, format ``B``), allocated if they were released."""
        ...

    def readable(self, name: str) -> memoryview:
        """Return the tensor's bytes, read-only; an error of the implementation if they were released."""
        ...


@runtime_checkable
class HoldingTarget(Protocol):
    """What a target implements besides, that can say which of its tensors hold memory."""

    def held(self) -> Iterator[str]:
        """Iterate over their names; tensors of size zero never do."""
        ...


@runtime_checkable
class LaidOutTarget(Protocol):
    """What a target implements besides, some of whose tensors lie otherwise in memory than in their source.

    Its ``specs`` and ``readable`` (a copy then) speak of such a tensor as the source has it, and so does
    every digest; ``writable`` alone is the memory as it is.
    """

    @property
    def transposed(self) -> Collection[str]:
        """Names of the tensors whose last two axes are exchanged in memory."""
        ...


@runtime_checkable
class TiedTarget(Protocol):
    """What a target implements besides, that has tensors under several names."""

    @property
    def tied(self) -> Mapping[str, str]:
        """Further names of such tensors, and the name that :meth:`WeightTarget.specs` has each under."""
        ...


@runtime_checkable
class StagedTarget(Protocol):
    """What a target implements besides, whose writable bytes lie elsewhere than the tensor they are for.

    A tensor in device memory is such a one: its bytes are written on the host and moved from there.
    """

    def written(self, name: str) -> None:
        """Take in that the bytes of :meth:`WeightTarget.writable` are complete; move them.

        They are verified as far as their source has promised them by then; a stream may do so later, and the
        load fails then.
        """
        ...


@runtime_checkable
class AdoptingTarget(Protocol):
    """What a target implements besides, that can keep memory of a source instead of a copy of it."""

    def adopts(self, name: str) -> bool:
        """Whether it would keep foreign memory for this tensor now: it holds none of its own.

        Where memory is held its address may have been captured, so bytes are copied into it.
        """
        ...

    def adopt(self, name: str, memory: memoryview) -> None:
        """Keep `memory`, complete and verified, as the tensor's bytes until they are released."""
        ...


@runtime_checkable
class ServedTarget(Protocol):
    """What a target implements besides, that is staged beside a version that serves.

    What arrives as a change of that version is put on top of a copy of it; the version itself stays.
    """

    def served(self, name: str) -> memoryview:
        """Return the bytes of the tensor that serves, read-only; an error if they were released."""
        ...


@runtime_checkable
class ReplaceableTarget(WeightTarget, Protocol):
    """What a target implements besides, whose models write into their parameters by themselves."""

    def restore(self, spared: Collection[str] = (), *, over_all: bool = False) -> list[str]:
        """Give memory to every tensor that holds none, and mark in it what loaders must write.

        Parameters
        ----------
        spared : collection of str
            Tensors that loaders need not write: they get zeros, or keep what they hold.
        over_all : bool
            Whether tensors that hold memory are marked as well.

        Returns
        -------
        list of str
            Those that are marked.
        """
        ...

    def recapture(self, marked: Collection[str] = ()) -> Mapping[str, int]:
        """Look anew which tensors the models have, since loaders may have replaced some.

        Returns
        -------
        mapping of str to int
            Of `marked`, how many elements still hold the mark that :meth:`restore` gave them, where any does.
        """
        ...


def tied_names(target: WeightTarget) -> Mapping[str, str]:
    """Return further names of the target's tensors, and the name that it has each under."""
    return target.tied if isinstance(target, TiedTarget) else {}


def transposed_names(target: WeightTarget) -> Collection[str]:
    """Return the names of tensors whose last two axes are exchanged in the target's memory."""
    return frozenset(target.transposed) if isinstance(target, LaidOutTarget) else frozenset()
