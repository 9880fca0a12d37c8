"""Whether an offer fits a model: every tensor once, none missing, none unknown, same dtype, same shape.

Where all tensors are known beforehand they are compared before any error is raised, so that one message
lists everything that is wrong; where they are not, each is compared as it comes.

A partial load brings some of a model's tensors and relies on the others: they must hold their bytes before it
begins, since it cannot make them whole again. Of a tensor that a model has under several names the first one
that comes is applied, whichever it is; what comes under another one must be of the same bytes, and is read
only to see that, if at all. Writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from wsm.errors import RefusedError, WsmError
from wsm.strategies import errors
from wsm.strategies.digest import digest_of
from wsm.strategies.errors import listed
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import TensorSpec, WeightTarget


class _EveryName(frozenset[str]):
    """Holds every name there is, and says none."""

    def __contains__(self, name: object) -> bool:
        return True


#: What is given for `allowed_unknown` where any name may come that the model does not have.
EVERY_NAME: Collection[str] = _EveryName()


def check_coverage(
    offered: Iterable[tuple[TensorSpec, str]],
    wanted: Mapping[str, TensorSpec],
    tied: Mapping[str, str] | None = None,
    *,
    allowed_unknown: Collection[str] = (),
    partial: bool = False,
    fix: str | None = None,
) -> None:
    """Compare what is offered, under any of its names, with what a model has.

    Parameters
    ----------
    offered : iterable of (TensorSpec, str)
        Each offered tensor with its origin, for messages.
    wanted : mapping of str to TensorSpec
        The model's tensors by name.
    tied : mapping of str to str, optional
        Further names of tensors, and the model's own name of each.
    allowed_unknown : collection of str
        Names that may be offered although the model does not have them.
    partial : bool
        Whether names may be missing; one at least must be offered.
    fix : str, optional
        As :func:`.errors.not_covered`.

    Raises
    ------
    BadInputError
        If names are missing, unknown or offered more than once, or a tensor has another dtype or shape.
    """
    rows, repeated = list(offered), list[tuple[TensorSpec, str]]()
    if tied:
        ties = Ties(tied, allowed_unknown)
        taken = [(ties.repeats(spec.name), ties.as_own(spec), origin) for spec, origin in rows]
        rows = [(spec, origin) for again, spec, origin in taken if not again]
        repeated = [(spec, origin) for again, spec, origin in taken if again]
    every = [*rows, *repeated]
    if len(rows) == len(wanted) == len({spec.name for spec, _ in rows}) and all(
        wanted.get(spec.name) == spec for spec, _ in every
    ):
        return  # the usual case, and models have many tensors
    counts = Counter(spec.name for spec, _ in rows)
    missing = [name for name in wanted if name not in counts]
    if partial and len(missing) < len(wanted):
        missing = []
    unknown = [name for name in counts if name not in wanted and name not in allowed_unknown]
    duplicate = [
        name
        for name, count in counts.items()
        if count > 1 and (name in wanted or name not in allowed_unknown)
    ]
    if missing or unknown or duplicate:
        wrong = set(unknown) | set(duplicate)
        origins = dict.fromkeys(origin for spec, origin in rows if not wrong or spec.name in wrong)
        names = {"missing": missing, "unknown": unknown, "duplicate": duplicate}
        raise errors.not_covered(**names, origins=list(origins), fix=fix)
    errors.check_kinds((spec, wanted[spec.name], origin) for spec, origin in every if spec.name in wanted)


def promised_by(origins: Sequence[str]) -> str:
    """Return what messages call the origin of tensors that were promised and have not come yet."""
    return f"the manifest from {listed(origins)}" if origins else "its manifest"


class RunningCoverage:
    """The same comparison for tensors that are known only as they come.

    Parameters
    ----------
    wanted : mapping of str to TensorSpec or None
        The model's tensors by name; None where it takes whatever comes, one tensor at least, each once.
    allowed_unknown : collection of str
        Names that may come although the model does not have them.
    partial : bool
        Whether not all need to come.
    origins : sequence of str
        The files or peers that they come from, for messages.

    Attributes
    ----------
    came : dict of str to TensorSpec
        What has come and is to be applied.
    left_out : dict of str to None
        Names that came, were allowed, and are not the model's, in their order.
    """

    def __init__(
        self,
        wanted: Mapping[str, TensorSpec] | None,
        *,
        allowed_unknown: Collection[str] = (),
        partial: bool = False,
        origins: Sequence[str] = (),
    ) -> None:
        self._wanted = wanted
        self._allowed_unknown, self._partial, self._origins = allowed_unknown, partial, origins
        self.came: dict[str, TensorSpec] = {}
        self.left_out: dict[str, None] = {}

    def admits(self, spec: TensorSpec, origin: str, *, again: bool = False) -> bool:
        """Whether the tensor that has come is to be applied; if not, it is allowed and left out.

        One that comes `again`, under another name, is compared with the model's and no more.

        Raises
        ------
        BadInputError
            If it must not come.
        """
        name = spec.name
        model = spec if self._wanted is None else self._wanted.get(name)
        if model is None and name in self._allowed_unknown:
            self.left_out[name] = None
            return False
        if model is None:
            raise errors.not_covered(unknown=[name], origins=[origin])
        if name in self.came and not again:
            raise errors.not_covered(duplicate=[name], origins=[origin])
        if spec != model:
            errors.check_kinds([(spec, model, origin)])
        self.came[name] = spec
        return True

    def finish(self) -> None:
        """Take in that no more tensors come.

        Raises
        ------
        BadInputError
            If some are missing, or all.
        """
        if self._partial and self.came:
            return
        missing = [name for name in self._wanted or () if name not in self.came]
        if missing or (self._wanted is None and not self.came):
            raise errors.not_covered(missing=missing, origins=self._origins)


def check_kept(target: WeightTarget, names: Iterable[str]) -> None:
    """See that tensors which are not loaded hold their bytes.

    Raises
    ------
    RefusedError
        If one does not. Nothing was changed.
    """
    name = ""
    try:
        for name in names:
            target.readable(name)
    except WsmError as error:
        raise RefusedError(
            f"a partial load leaves {name!r} as it is, and it cannot stay: {error}; load a whole version "
            "first",
            code="partial-load-refused",
            reason=str(error),
            unfit=True,
            tensor=name,
        ) from error


def digests_held(
    target: WeightTarget, names: Iterable[str], go_on: Callable[[], None]
) -> list[tuple[TensorSpec, str]]:
    """Return the digests of tensors as they are in memory; `go_on` is called before each. Blocks."""
    specs, found = target.specs(), []
    for name in names:
        go_on()
        found.append((specs[name], digest_of(target.readable(name))))
    return found


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
        # A further name of the model's own tensor is none that the model does not have.
        allowed = () if left_out is EVERY_NAME else left_out
        self._tied = {name: own for name, own in tied.items() if name not in allowed}
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
        BadInputError (``tied-tensors-differ``)
            If two digests are promised for one tensor. Nothing was touched.
        """
        taken = [self.take(tensor) for tensor in tensors]
        promised = {tensor.spec.name: tensor.digest for tensor in taken if not tensor.repeats}
        for tensor in taken:
            own = self.own(tensor.spec.name)
            known = None if tensor.digest is None or not tensor.repeats else promised[own]
            if known not in (None, tensor.digest):
                raise errors.tied_tensors_differ(tensor=own, name=tensor.spec.name, origin=tensor.origin)
        return tuple(taken)
