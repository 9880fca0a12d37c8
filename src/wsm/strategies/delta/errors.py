"""What can be wrong with deltas: a base that is another one, files that are none, a model that differs.

Every error is raised before a byte of the target was touched, except where
``touched`` says otherwise, as a load stamps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, RefusedError, coded


class DeltaBaseError(RefusedError):
    """A delta does not fit what it would be applied to. Nothing was changed.

    Parameters
    ----------
    version : str
        The version that was asked for.
    base_version, base_digest : str
        What the delta was made against: its number, and the digest of this rank's tensors of it.
    found_digest : str or None
        Digest of the tensors that are there; None if they are released.
    found_version : str or None
        The version of the same directory that has that digest; None if none has.
    tensors : sequence of str
        Names of the tensors that differ from the base.
    where : str
        The delta's file.
    """

    unfit = True


@coded("delta-not-found")
def delta_not_found(*, version: str | None, rank: int, looked_at: Sequence[str]) -> BadInputError:
    """Neither a delta nor a full version is published under the number that is wanted."""
    wanted = "any version" if version is None else f"version {version}"
    return BadInputError(
        f"{wanted} is not published for rank {rank}; looked for {', '.join(looked_at)}; "
        "publish it, or correct the directory",
        unfit=True,
        looked_at=tuple(looked_at),
    )


@coded("bad-delta")
def bad_delta(*, file: str, tensor: str, problem: str) -> BadInputError:
    """A delta's blocks are not what its manifest says."""
    return BadInputError(
        f"{file} is damaged at tensor {tensor!r}: {problem}; publish the delta again",
        unfit=True,
    )
