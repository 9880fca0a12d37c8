"""Where one rank's tensor lies in the whole tensor of the model, as its publisher wrote it.

A placement is a rule, not a place: it says for every number of ranks what each of them holds, so that a
version written for one number can be read for another. Pure: no files, no bytes.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from wsm.errors import BadInputError, UnfitError, coded

Shape: TypeAlias = tuple[int, ...]

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@coded("placement")
def bad_placement(*, tensor: str, problem: str) -> BadInputError:
    """A tensor cannot be divided by the number of ranks, or is not what its placement says."""
    return UnfitError(
        f"{tensor!r} {problem}; correct its placement, or publish for the number of ranks that load"
    )


class AxisSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stretch of the split axis that is divided over the ranks by itself: the keys of a fused QKV matrix.

    Parameters
    ----------
    extent : int
        Its length over all ranks.
    heads : int or None
        How many heads it consists of. None of them is cut, and with more ranks than heads each is held by
        several neighbouring ranks. None: any even cut will do.
    """

    extent: _Count
    heads: _Count | None = None


class AxisRun(NamedTuple):
    """A contiguous stretch of the whole tensor's split axis: where it begins, and how long it is."""

    begin: int
    length: int


class Replicated(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="how", tag="replicated"):
    """Every rank holds the whole tensor."""


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="how", tag="split"):
    """Each rank holds its part of every segment, one behind the other.

    Parameters
    ----------
    axis : int
        The axis that is split, counted from 0.
    segments : tuple of Segment
        Their extents add up to that of the whole tensor; one, unless matrices are fused.
    """

    axis: _Count
    segments: tuple[AxisSegment, ...]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="how", tag="member"):
    """One rank holds the whole tensor, the others none of it: member `index` of `of`, as experts are.

    The members are divided evenly over the ranks, in their order.
    """

    index: _Count
    of: _Count


#: How a tensor lies on the ranks.
Placement: TypeAlias = Replicated | Split | Member


def split(shape: Shape, axis: int, *, heads: int | None = None) -> Split:
    """Return the placement of a tensor of `shape` (that of the whole) that is cut evenly along `axis`."""
    axis = range(len(shape))[axis]
    return Split(axis, (AxisSegment(shape[axis], heads),))


def runs(tensor: str, placement: Placement, shape: Shape, rank: int, ranks: int) -> tuple[AxisRun, ...]:
    """Return what `rank` of `ranks` holds of the split axis of the whole; nothing if it does not hold it.

    Parameters
    ----------
    tensor : str
        Its name, for messages.
    placement : Placement
        How it lies.
    shape : tuple of int
        Its whole shape.
    rank, ranks : int
        Which of how many.

    Returns
    -------
    tuple of Run
        In the order in which they lie in the rank's own tensor. For an unsplit tensor one run over its
        first axis (of extent 1 for a scalar).

    Raises
    ------
    BadInputError (``placement``)
        If the tensor cannot be divided by so many ranks.
    """
    if isinstance(placement, Split):
        found, begin = [], 0
        for segment in placement.segments:
            found.append(_part(tensor, segment, begin, rank, ranks))
            begin += segment.extent
        return tuple(found)
    if isinstance(placement, Member):
        if placement.index >= placement.of:
            problem = f"is member {placement.index} of {placement.of}, counted from 0"
            raise bad_placement(tensor=tensor, problem=problem)
        if placement.of % ranks:
            raise _indivisible(tensor, f"{placement.of} members", ranks)
        if placement.index // (placement.of // ranks) != rank:
            return ()
    return (AxisRun(0, shape[0] if shape else 1),)


def local_shape(tensor: str, placement: Placement, shape: Shape, rank: int, ranks: int) -> Shape | None:
    """Return the shape of what `rank` of `ranks` holds; None if it does not hold the tensor.

    Raises
    ------
    BadInputError (``placement``)
        As :func:`runs`.
    """
    held = runs(tensor, placement, shape, rank, ranks)
    if not held:
        return None
    if not isinstance(placement, Split):
        return shape
    extent = sum(run.length for run in held)
    return (*shape[: placement.axis], extent, *shape[placement.axis + 1 :])


def whole_shape(tensor: str, placement: Placement, local: Shape, rank: int, ranks: int) -> Shape:
    """Return the whole shape of a tensor of which `rank` of `ranks` holds `local`.

    Raises
    ------
    BadInputError (``placement``)
        If a rank of so many does not hold just that.
    """
    shape = local
    if isinstance(placement, Split):
        if not 0 <= placement.axis < len(local) or not placement.segments:
            raise bad_placement(
                tensor=tensor, problem=f"is split along axis {placement.axis} of the shape {list(local)}"
            )
        extent = sum(segment.extent for segment in placement.segments)
        shape = (*local[: placement.axis], extent, *local[placement.axis + 1 :])
    expected = local_shape(tensor, placement, shape, rank, ranks)
    if expected != local:
        where = "nothing" if expected is None else f"the shape {list(expected)}"
        raise bad_placement(
            tensor=tensor,
            problem=f"has the shape {list(local)} where its placement gives rank {rank} of {ranks} {where}",
        )
    return shape


def _part(tensor: str, segment: AxisSegment, begin: int, rank: int, ranks: int) -> AxisRun:
    if segment.heads is None:
        if segment.extent % ranks:
            raise _indivisible(tensor, f"an extent of {segment.extent}", ranks)
        length = segment.extent // ranks
        return AxisRun(begin + rank * length, length)
    heads = segment.heads
    if heads < 1 or segment.extent % heads:
        raise bad_placement(tensor=tensor, problem=f"has {heads} heads in an extent of {segment.extent}")
    if heads % ranks and ranks % heads:
        raise _indivisible(tensor, f"{heads} heads", ranks)
    parts = min(heads, ranks)
    length = segment.extent // parts
    return AxisRun(begin + rank * parts // ranks * length, length)


def _indivisible(tensor: str, what: str, ranks: int) -> BadInputError:
    return bad_placement(tensor=tensor, problem=f"has {what}, which {ranks} ranks cannot share evenly")
