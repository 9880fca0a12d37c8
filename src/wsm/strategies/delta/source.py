"""Where deltas are looked for, and what becomes of weights that they do not fit; and the module of the codec.

Said by a configuration for all ranks, and by a source for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, TypeAlias

from wsm.config_reading import typed_section
from wsm.errors import BadInputError, RefusedError, UnfitError, coded
from wsm.strategies.files.shard_source import ShardsConfig, ShardSource
from wsm.typed import Count, typed


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
    return UnfitError(
        f"{wanted} is not published for rank {rank}; looked for {', '.join(looked_at)}; "
        "publish it, or correct the directory",
        looked_at=tuple(looked_at),
    )


@coded("bad-delta")
def bad_delta(*, file: str, tensor: str, problem: str) -> BadInputError:
    """A delta's blocks are not what its manifest says."""
    return UnfitError(f"{file} is damaged at tensor {tensor!r}: {problem}; publish the delta again")


#: What may be done where a rank does not hold the base: load whole files of the directory, or refuse.
Fallback: TypeAlias = Literal["full", "refuse"]

#: The most deltas that are put on top of each other.
MAX_CHAIN = 16


@typed_section
@dataclass(frozen=True)
class DeltaConfig(ShardsConfig):
    """Where the ``delta`` strategy looks.

    Parameters
    ----------
    directory : str
        Holds ``deltas/{version}/``, and ``versions/{version}/`` for versions that are published whole.
    device_ids : sequence of int
        The device id in the names of each rank's whole files; empty: from the environment, as for snapshots.
    fallback : str
        ``full`` or ``refuse``: what a rank does that does not hold what a delta was made against.
    max_chain : int
        The most deltas that are put on top of each other.
    """

    fallback: Fallback = "full"
    max_chain: Count = MAX_CHAIN


@typed
@dataclass(frozen=True)
class DeltaSource(ShardSource):
    """One rank's view of a directory with deltas.

    Parameters
    ----------
    directory : path or str
        Holds ``deltas/{version}/``, and ``versions/{version}/`` for versions that are published whole.
    rank, world_size
        As for :class:`wsm.strategies.files.shard_source.ShardSource`.
    device_id : int, optional
        As there, in the names of whole snapshots; deltas do not have it.
    fallback : str
        ``full``: a rank that does not hold the base (released, replaced, or another version) loads whole
        files, the version's own or those of an earlier one with the deltas since. ``refuse``: it is refused.
        A version that is published only whole is loaded whole either way.
    max_chain : int
        The most deltas that are put on top of each other.
    """

    fallback: Fallback = "full"
    max_chain: Count = MAX_CHAIN


def codec() -> ModuleType:
    """Return :mod:`wsm.strategies.delta._codec`; RefusedError where zstandard is not installed."""
    try:
        from wsm.strategies.delta import _codec  # noqa: PLC0415 - only who reads or writes blocks needs zstandard
    except ImportError as error:
        text = "deltas take the package zstandard; install wsm[delta]"
        raise RefusedError(text, code="zstandard-missing") from error
    return _codec
