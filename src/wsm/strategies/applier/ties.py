"""Tensors that a model has under several names, when a source brings them under more than one, or another.

The first of the names that comes is applied, whichever it is; what comes under another one must be of the
same bytes, and is read only to see that, if at all. Pure: names and offers in, names and offers out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from wsm.strategies.applier.coverage import check_coverage
from wsm.strategies.errors import TiedTensorsDifferError
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import TensorSpec


class Ties:
    """The names of one pass over what a source brings.

    Parameters
    ----------
    tied : mapping of str to str
        Further names of the target's tensors, and the name that it keeps each under.
    left_out : collection of str
        Names that are not looked at, since the caller allows them to be there for nothing.
    """

    def __init__(self, tied: Mapping[str, str], left_out: Collection[str] = ()) -> None:
        self._tied = {name: own for name, own in tied.items() if name not in left_out}
        self._taken: dict[str, set[str]] = {}

    def own(self, name: str) -> str:
        """Return the name that the target keeps a tensor under."""
        return self._tied.get(name, name)

    def repeats(self, name: str) -> bool:
        """Take a name in; return whether its tensor came before, under another one."""
        taken = self._taken.setdefault(self.own(name), set())
        found = bool(taken) and name not in taken
        taken.add(name)
        return found

    def take(self, tensor: OfferedTensor) -> OfferedTensor:
        """Take a tensor in; return it under the target's name, or marked if it came before."""
        if not self._tied:
            return tensor
        name = tensor.spec.name
        if self.repeats(name):
            return replace(tensor, repeats=True)
        own = self.own(name)
        return tensor if own == name else replace(tensor, spec=self.as_own(tensor.spec))

    def as_own(self, spec: TensorSpec) -> TensorSpec:
        """Return `spec` under the target's name."""
        return TensorSpec(self.own(spec.name), spec.dtype, spec.shape)

    def take_all(self, tensors: Iterable[OfferedTensor]) -> tuple[OfferedTensor, ...]:
        """Take all tensors of an offer in, as :meth:`take` does, in the order in which they are read.

        Raises
        ------
        TiedTensorsDifferError
            If two digests are promised for one tensor. Nothing was touched.
        """
        taken = [self.take(tensor) for tensor in tensors]
        promised = {tensor.spec.name: tensor.digest for tensor in taken if not tensor.repeats}
        for tensor in taken:
            own = self.own(tensor.spec.name)
            known = None if tensor.digest is None or not tensor.repeats else promised[own]
            if known not in (None, tensor.digest):
                raise TiedTensorsDifferError(
                    tensor=own, name=tensor.spec.name, origin=tensor.origin, touched=False
                )
        return tuple(taken)


def check_tied_coverage(
    offered: Iterable[tuple[TensorSpec, str]],
    wanted: Mapping[str, TensorSpec],
    tied: Mapping[str, str],
    *,
    allowed_unknown: Collection[str] = (),
    partial: bool = False,
) -> None:
    """Compare as ``check_coverage`` of the untied, for tensors under any of their names.

    Raises
    ------
    BadInputError
        If what is offered does not fit, under whatever name.
    """
    if not tied:
        check_coverage(offered, wanted, allowed_unknown=allowed_unknown, partial=partial)
        return
    ties = Ties(tied, allowed_unknown)
    firsts: list[tuple[TensorSpec, str]] = []
    repeated: list[tuple[TensorSpec, str]] = []
    for spec, origin in offered:
        rows = repeated if ties.repeats(spec.name) else firsts
        rows.append((ties.as_own(spec), origin))
    check_coverage(firsts, wanted, allowed_unknown=allowed_unknown, partial=partial)
    for spec, origin in repeated:
        check_coverage([(spec, origin)], {spec.name: wanted[spec.name]})
