"""Whether an offer fits a model: every tensor once, none missing, none unknown, same dtype, same shape.

Where all tensors are known beforehand they are compared before any error is raised, so that one message
lists everything that is wrong; where they are not, each is compared as it comes. Pure: specs in, errors out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from wsm.strategies import errors
from wsm.strategies.errors import listed
from wsm.strategies.tensor import TensorSpec


def check_coverage(
    offered: Iterable[tuple[TensorSpec, str]],
    wanted: Mapping[str, TensorSpec],
    *,
    allowed_unknown: Collection[str] = (),
    partial: bool = False,
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
    partial : bool
        Whether names may be missing; one at least must be offered.

    Raises
    ------
    BadInputError
        If names are missing, unknown or offered more than once.
    BadInputError
        If a tensor has another dtype.
    BadInputError
        If a tensor has another shape.
    """
    rows = list(offered)
    if _is_covered(rows, wanted):
        return
    counts = Counter(spec.name for spec, _ in rows)
    missing = [name for name in wanted if name not in counts]
    if partial and len(missing) < len(wanted):
        missing = []
    unknown = [name for name in counts if name not in wanted and name not in allowed_unknown]
    duplicate = [name for name, count in counts.items() if count > 1]
    if missing or unknown or duplicate:
        wrong = set(unknown) | set(duplicate)
        origins = dict.fromkeys(origin for spec, origin in rows if not wrong or spec.name in wrong)
        raise errors.not_covered(missing=missing, unknown=unknown, duplicate=duplicate, origins=list(origins))
    known = [(spec, wanted[spec.name], origin) for spec, origin in rows if spec.name in wanted]
    dtypes = [
        (spec.name, model.dtype, spec.dtype, origin)
        for spec, model, origin in known
        if spec.dtype != model.dtype
    ]
    if dtypes:
        raise errors.dtype_mismatch(mismatches=dtypes)
    shapes = [
        (spec.name, model.shape, spec.shape, origin)
        for spec, model, origin in known
        if spec.shape != model.shape
    ]
    if shapes:
        raise errors.shape_mismatch(mismatches=shapes)


def _is_covered(rows: Sequence[tuple[TensorSpec, str]], wanted: Mapping[str, TensorSpec]) -> bool:
    """Whether nothing is wrong, found in one pass; it is the usual case, and models have many tensors."""
    if len(rows) != len(wanted) or len({spec.name for spec, _ in rows}) != len(rows):
        return False
    for spec, _ in rows:
        model = wanted.get(spec.name)
        if model is None or spec.dtype != model.dtype or spec.shape != model.shape:
            return False
    return True


def promised_by(origins: Sequence[str]) -> str:
    """Return what messages call the origin of tensors that were promised and have not come yet."""
    return f"the manifest from {listed(origins)}" if origins else "its manifest"


class RunningCoverage:
    """The same comparison for tensors that are known only as they come.

    Parameters
    ----------
    wanted : mapping of str to TensorSpec
        The model's tensors by name.
    allowed_unknown : collection of str
        Names that may come although the model does not have them.
    partial : bool
        Whether not all need to come.
    origins : sequence of str
        The files or peers that they come from, for messages.
    """

    def __init__(
        self,
        wanted: Mapping[str, TensorSpec],
        *,
        allowed_unknown: Collection[str] = (),
        partial: bool = False,
        origins: Sequence[str] = (),
    ) -> None:
        self._partial = partial
        self._origins = origins
        self._wanted = wanted
        self._allowed_unknown = allowed_unknown
        self._seen: set[str] = set()

    def admits(self, spec: TensorSpec, origin: str) -> bool:
        """Whether the tensor that has come is to be applied; if not, it is allowed and left out.

        Raises
        ------
        BadInputError
            If it must not come; ``touched`` if another one was admitted before it.
        """
        name, touched = spec.name, bool(self._seen)
        model = self._wanted.get(name)
        if model is None:
            if name in self._allowed_unknown:
                return False
            raise errors.not_covered(unknown=[name], origins=[origin], touched=touched)
        if name in self._seen:
            raise errors.not_covered(duplicate=[name], origins=[origin], touched=touched)
        self.fits(spec, origin)
        self._seen.add(name)
        return True

    def fits(self, spec: TensorSpec, origin: str) -> None:
        """See that a tensor of the model has its dtype and shape.

        Raises
        ------
        BadInputError
            If it has not; ``touched`` if any was admitted before.
        """
        name, model, touched = spec.name, self._wanted[spec.name], bool(self._seen)
        if spec.dtype != model.dtype:
            raise errors.dtype_mismatch(mismatches=[(name, model.dtype, spec.dtype, origin)], touched=touched)
        if spec.shape != model.shape:
            raise errors.shape_mismatch(mismatches=[(name, model.shape, spec.shape, origin)], touched=touched)

    def finish(self) -> None:
        """Take in that no more tensors come.

        Raises
        ------
        BadInputError
            If some are missing, or all; ``touched`` if any was admitted.
        """
        if self._partial and self._seen:
            return
        missing = [name for name in self._wanted if name not in self._seen]
        if missing:
            raise errors.not_covered(missing=missing, origins=self._origins, touched=bool(self._seen))
