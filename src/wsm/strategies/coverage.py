"""Whether an offer fits a model: every tensor once, none missing, none unknown, same dtype, same shape.

All tensors are compared before any error is raised, so that one message lists everything that is wrong.
Pure: specs in, errors out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from wsm.strategies.errors import CoverageError, DtypeMismatchError, ShapeMismatchError
from wsm.strategies.tensor import TensorSpec


def check_coverage(
    offered: Iterable[tuple[TensorSpec, str]],
    wanted: Mapping[str, TensorSpec],
    *,
    allowed_unknown: Collection[str] = (),
) -> None:
    """Compare what is offered with what a model has.

    Parameters
    ----------
    offered : iterable of (TensorSpec, str)
        Each offered tensor with its origin, for messages.
    wanted : mapping of str to TensorSpec
        The model's tensors by name.
    allowed_unknown : collection of str
        Names that may be offered although the model does not have them.

    Raises
    ------
    CoverageError
        If names are missing, unknown or offered more than once.
    DtypeMismatchError
        If a tensor has another dtype.
    ShapeMismatchError
        If a tensor has another shape.
    """
    rows = list(offered)
    counts = Counter(spec.name for spec, _ in rows)
    missing = [name for name in wanted if name not in counts]
    unknown = [name for name in counts if name not in wanted and name not in allowed_unknown]
    duplicate = [name for name, count in counts.items() if count > 1]
    if missing or unknown or duplicate:
        raise CoverageError(missing=missing, unknown=unknown, duplicate=duplicate)
    known = [(spec, wanted[spec.name], origin) for spec, origin in rows if spec.name in wanted]
    dtypes = [
        (spec.name, model.dtype, spec.dtype, origin)
        for spec, model, origin in known
        if spec.dtype != model.dtype
    ]
    if dtypes:
        raise DtypeMismatchError(mismatches=dtypes)
    shapes = [
        (spec.name, model.shape, spec.shape, origin)
        for spec, model, origin in known
        if spec.shape != model.shape
    ]
    if shapes:
        raise ShapeMismatchError(mismatches=shapes)
