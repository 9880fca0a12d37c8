"""The tensors of a shard's manifest as rows: read thousands at a time, a microsecond or two for each.

A row is name, kind and digest. What many tensors have in common (dtype, shape, placement) is written once,
as a kind; which part a tensor lies in follows from how many each part holds. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

from wsm.strategies.documents import FieldReader, are_digests, are_texts
from wsm.strategies.snapshot.placement import AxisSegment, Member, Placement, Replicated, Split
from wsm.strategies.tensor import TensorSpec

_Kind = tuple[str, tuple[int, ...], Placement | None]


class TensorEntry(NamedTuple):
    """One tensor of a shard.

    Parameters
    ----------
    spec : TensorSpec
        Name, dtype, shape.
    digest : str
        xxh3-128 of its bytes in C order.
    part : int
        Position of its file in the manifest's list of parts.
    placement : Placement or None
        Where it lies in the whole tensor; None if the publisher did not say.
    """

    spec: TensorSpec
    digest: str
    part: int
    placement: Placement | None = None


def encode_rows(entries: Iterable[TensorEntry]) -> dict[str, Any]:
    """Return the fields ``kinds`` and ``tensors`` of a manifest."""
    kinds: dict[_Kind, int] = {}
    rows = [
        [
            spec.name,
            kinds.setdefault((spec.dtype, spec.shape, placement), len(kinds)),
            digest,
        ]
        for spec, digest, _, placement in entries
    ]
    return {"kinds": [_encode_kind(*kind) for kind in kinds], "tensors": rows}


def decode_rows(reader: FieldReader, tensors_per_part: Sequence[int]) -> tuple[TensorEntry, ...]:
    """Read what :func:`encode_rows` returned.

    Parameters
    ----------
    reader : FieldReader
        The manifest's fields.
    tensors_per_part : sequence of int
        How many tensors each part holds, in the manifest's order of both.

    Raises
    ------
    ManifestError
        If a field is not what it must be, or the parts do not hold just the tensors.
    """
    kinds = [_decode_kind(kind) for kind in reader.objects("kinds")]
    rows = reader.rows("tensors")
    if not rows:
        raise reader.refuse("tensors", "a list of tensors, there is no tensor in it")
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {3}:
        raise reader.refuse("tensors", "a list of rows of name, kind and digest")
    names, indexes, digests = zip(*rows, strict=True)
    if not are_texts(names):
        raise reader.refuse("tensors", "a list of rows that begin with a name")
    if set(map(type, indexes)) != {int} or min(indexes) < 0 or max(indexes) >= len(kinds):
        raise reader.refuse("tensors", "a list of rows with a kind that is listed")
    if not are_digests(digests):
        raise reader.refuse("tensors", "a list of rows that end with a digest")
    if sum(tensors_per_part) != len(rows):
        problem = f"a list of {sum(tensors_per_part)} tensors, as many as the parts hold"
        raise reader.refuse("tensors", problem)
    parts = chain.from_iterable(repeat(part, count) for part, count in enumerate(tensors_per_part))
    entries = []
    for name, index, digest, part in zip(names, indexes, digests, parts, strict=True):
        dtype, shape, placement = kinds[index]
        entries.append(TensorEntry(TensorSpec(name, dtype, shape), digest, part, placement))
    return tuple(entries)


def _encode_kind(dtype: str, shape: tuple[int, ...], placement: Placement | None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "placement": _encode_placement(placement)}


def _decode_kind(reader: FieldReader) -> _Kind:
    return reader.dtype("dtype"), reader.shape("shape"), _decode_placement(reader)


def _encode_placement(placement: Placement | None) -> dict[str, Any] | None:
    if placement is None:
        return None
    if isinstance(placement, Replicated):
        return {"how": "replicated"}
    if isinstance(placement, Member):
        return {"how": "member", "index": placement.index, "of": placement.of}
    segments = [
        {"extent": segment.extent}
        if segment.heads is None
        else {"extent": segment.extent, "heads": segment.heads}
        for segment in placement.segments
    ]
    return {"how": "split", "axis": placement.axis, "segments": segments}


def _decode_placement(reader: FieldReader) -> Placement | None:
    if reader.absent("placement"):
        return None
    fields = reader.within("placement")
    how = fields.text("how")
    if how == "replicated":
        return Replicated()
    if how == "member":
        return Member(fields.count("index"), fields.count("of"))
    if how != "split":
        raise fields.refuse("how", "replicated, split or member")
    segments = tuple(
        AxisSegment(segment.count("extent"), None if segment.absent("heads") else segment.count("heads"))
        for segment in fields.objects("segments")
    )
    return Split(fields.count("axis"), segments)
