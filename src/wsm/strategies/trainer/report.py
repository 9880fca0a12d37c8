"""What a trainer is told of a version that it has handed over, by whatever way. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainerReport:
    """A version that was handed over.

    Parameters
    ----------
    version : str
        The version.
    manifest_digest : str
        Digest of the publication; what every rank's load reports.
    digests : mapping of int to str
        Digest of the tensors of each rank.
    bytes : int
        Bytes of all tensors.
    seconds : float
        What it took.
    """

    version: str
    manifest_digest: str
    digests: Mapping[int, str]
    bytes: int
    seconds: float
