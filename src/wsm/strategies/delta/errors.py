"""What can be wrong with deltas: a base that is another one, files that are none, a model that differs.

Every error is raised before a byte of the target was touched, except where
``touched`` says otherwise, as a load stamps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, RefusedError, coded
from wsm.strategies.errors import listed


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
    looked_for : str
        Why no other way led to the version.
    """

    unfit = True

    def __init__(
        self,
        *,
        version: str,
        base_version: str,
        base_digest: str,
        found_digest: str | None,
        found_version: str | None,
        tensors: Sequence[str],
        where: str,
        looked_for: str,
    ) -> None:
        if found_digest is None:
            found = "this rank holds no whole weights"
        else:
            known = "a version unknown here" if found_version is None else f"version {found_version}"
            names = listed([repr(name) for name in tensors])
            found = f"this rank holds {known}, digest {found_digest} (different: {names})"
        super().__init__(
            f"version {version} in {where} is a delta against version {base_version}, digest {base_digest}, "
            f"but {found}; {looked_for}; load a full version, or publish this one as a full one",
            version=version,
            base_version=base_version,
            base_digest=base_digest,
            found_digest=found_digest,
            found_version=found_version,
            tensors=tuple(tensors),
            where=where,
        )


class DeltaLayoutError(BadInputError):
    """A delta was made for another number of ranks, and there are no whole files. Nothing was changed.

    Parameters
    ----------
    version : str
        The version that was asked for.
    where : str
        The delta's manifest.
    made_for, ranks : int
        For how many ranks it was made, and how many there are.
    looked_for : str
        Why no whole files are loaded instead.
    """

    unfit = True

    def __init__(self, *, version: str, where: str, made_for: int, ranks: int, looked_for: str) -> None:
        super().__init__(
            f"version {version} in {where} is a delta for world size {made_for}, and this group has "
            f"world size {ranks}: changes of one layout cannot be cut into another; {looked_for}; publish "
            f"version {version} whole, with placements or for {ranks} ranks, or start {made_for} ranks",
            version=version,
            where=where,
            made_for=made_for,
            ranks=ranks,
        )


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
