"""What can be wrong with tensors when they are held against a target and applied to it.

``touched`` says whether a byte of the target was changed: its weights must not serve then. Lists are
complete in the attributes and shortened in the message. Knows no strategies.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, InternalError, RefusedError
from wsm.strategies.file_errors import listed


class CoverageError(BadInputError):
    """The offered tensors are not exactly the model's: some are missing, unknown, or offered twice.

    `origins` are the files or peers that bring them. ``touched`` if a stream showed it only after other
    tensors of it were applied.
    """

    def __init__(
        self,
        *,
        missing: Sequence[str] = (),
        unknown: Sequence[str] = (),
        duplicate: Sequence[str] = (),
        origins: Sequence[str] = (),
        touched: bool = False,
    ) -> None:
        found = [
            f"{len(names)} {kind}: {listed([repr(name) for name in names])}"
            for kind, names in (("missing", missing), ("unknown", unknown), ("duplicate", duplicate))
            if names
        ]
        super().__init__(
            "the snapshot does not cover the model's tensors exactly once: "
            + "; ".join(found)
            + (f"; they come from {listed(origins)}" if origins else "")
            + ("; the target's weights are not whole" if touched else "")
            + "; publish the state dict of this very model and rank",
            missing=tuple(missing),
            unknown=tuple(unknown),
            duplicate=tuple(duplicate),
            origins=tuple(origins),
            touched=touched,
        )


class DtypeMismatchError(BadInputError):
    """Tensors have another dtype than the model's; `mismatches` holds (name, expected, found, origin)."""

    def __init__(self, *, mismatches: Sequence[tuple[str, str, str, str]], touched: bool = False) -> None:
        super().__init__(
            _mismatch_message("dtype", mismatches, touched=touched),
            mismatches=tuple(mismatches),
            touched=touched,
        )


class ShapeMismatchError(BadInputError):
    """Tensors have another shape than the model's; `mismatches` holds (name, expected, found, origin)."""

    def __init__(
        self,
        *,
        mismatches: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], str]],
        touched: bool = False,
    ) -> None:
        super().__init__(
            _mismatch_message("shape", mismatches, touched=touched),
            mismatches=tuple(mismatches),
            touched=touched,
        )


def _mismatch_message(
    kind: str, mismatches: Sequence[tuple[str, object, object, str]], *, touched: bool
) -> str:
    details = listed(
        [
            f"{name!r} has {kind} {found} in {origin}, the model has {expected}"
            for name, expected, found, origin in mismatches
        ]
    )
    whole = "; the target's weights are not whole" if touched else ""
    return (
        f"{len(mismatches)} tensors of another {kind}: {details}{whole}; publish this model's own state dict"
    )


class NotFiniteError(BadInputError):
    """A tensor holds NaN or infinity although its manifest promises neither.

    Found in the pass that copies, so the target was touched and must not serve; only loaders of models get
    bytes that were checked before, and what a change leaves as it is may be looked at first.
    """

    def __init__(self, *, tensor: str, origin: str, index: int, touched: bool = True) -> None:
        super().__init__(
            f"tensor {tensor!r} of {origin} is not finite from element {index} on (in C order), although its "
            "manifest says finite; "
            + ("the target's weights are not whole; " if touched else "")
            + "publish a version without NaN",
            tensor=tensor,
            origin=origin,
            index=index,
            touched=touched,
        )


class TiedTensorsDifferError(BadInputError):
    """A source brings one tensor of the model under two of its names, with different bytes."""

    def __init__(self, *, tensor: str, name: str, origin: str, touched: bool) -> None:
        super().__init__(
            f"{tensor!r} and {name!r} are one tensor of the model, and {origin} has other bytes there; "
            + ("the target's weights are not whole; " if touched else "")
            + "publish it once, or the same under both names",
            tensor=tensor,
            name=name,
            origin=origin,
            touched=touched,
        )


class PartialLoadRefusedError(RefusedError):
    """A partial load would leave tensors without the bytes that it does not bring. Nothing was changed."""

    def __init__(self, *, tensor: str, reason: str) -> None:
        super().__init__(
            f"a partial load leaves {tensor!r} as it is, and it cannot stay: {reason}; "
            "load a whole version first",
            tensor=tensor,
            reason=reason,
        )


class DigestMismatchError(BadInputError):
    """Bytes that were applied are not those that the manifest promised.

    Found in the pass that copies, so the target was touched and must not serve; only loaders of models get
    bytes that were verified first.
    """

    def __init__(self, *, tensor: str, origin: str, expected: str, actual: str, touched: bool = True) -> None:
        super().__init__(
            f"tensor {tensor!r} of {origin} is corrupt: digest {actual} instead of {expected}; "
            + ("the target's weights are not whole; " if touched else "")
            + "publish the snapshot again and load it",
            tensor=tensor,
            origin=origin,
            expected=expected,
            actual=actual,
            touched=touched,
        )


class LoadCancelledError(GroupError):
    """The caller no longer wants the load. ``touched`` says whether a byte of the target was changed."""

    def __init__(self, *, tensors_applied: int, tensors: int, touched: bool) -> None:
        super().__init__(
            f"the load was cancelled after {tensors_applied} of {tensors} tensors; "
            + ("the target's weights are not whole" if touched else "the target is as it was"),
            tensors_applied=tensors_applied,
            tensors=tensors,
            touched=touched,
        )


class TargetContractError(InternalError):
    """A weight target hands out memory that does not fit its own specification. Its weights are touched."""

    def __init__(self, *, tensor: str, problem: str) -> None:
        super().__init__(
            f"the target's memory for {tensor!r} cannot take the tensor: {problem}",
            tensor=tensor,
            problem=problem,
            touched=True,
        )
