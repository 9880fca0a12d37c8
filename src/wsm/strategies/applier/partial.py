"""What a partial load leaves as it is: that it can stay, and its part of the digest of all.

A load that brings some of a model's tensors relies on the others: they must hold their bytes before it
begins, since it cannot make them whole again. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wsm.errors import WsmError
from wsm.strategies import errors
from wsm.strategies.digest import digest_of
from wsm.strategies.tensor import TensorSpec, WeightTarget


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
        raise errors.partial_load_refused(tensor=name, reason=str(error)) from error


def digests_of_kept(
    target: WeightTarget, names: Iterable[str], go_on: Callable[[], None]
) -> list[tuple[TensorSpec, str]]:
    """Return the digests of tensors that were not loaded; `go_on` is called before each. Blocks."""
    specs, found = target.specs(), []
    for name in names:
        go_on()
        found.append((specs[name], digest_of(target.readable(name))))
    return found
