"""What became of a version that was to be published as a delta. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wsm.strategies.delta.shard import DeltaShard


@dataclass(frozen=True)
class DeltaReport:
    """What was published, and whether it is a delta at all.

    Parameters
    ----------
    version, base_version : str
        From which version to which it leads.
    path : str
        Its directory.
    whole : str or None
        Why the whole version was published instead: ``size`` or ``chain``; None: it is a delta.
    manifest_digest : str
        Digest of the manifest; what every rank's load reports.
    digests : mapping of int to str
        Digest of the tensors of each rank.
    bytes, whole_bytes : int
        Bytes of all blocks, and of all tensors.
    unchanged, changed, full : int
        Tensors of all ranks that have not changed, that are there as changes, that are there in full.
    seconds : float
        From the first byte to the announcement.
    retired : tuple of str
        Versions whose deltas (or, if `whole`, whose files) were removed.
    """

    version: str
    base_version: str
    path: str
    whole: str | None
    manifest_digest: str
    digests: Mapping[int, str]
    bytes: int
    whole_bytes: int
    unchanged: int
    changed: int
    full: int
    seconds: float
    retired: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Bytes of the delta as a part of those of the whole version."""
        return self.bytes / self.whole_bytes if self.whole_bytes else 0.0

    @classmethod
    def of(
        cls,
        shards: Sequence[DeltaShard],
        *,
        path: str,
        whole: str | None,
        manifest_digest: str,
        seconds: float,
        retired: tuple[str, ...],
    ) -> DeltaReport:
        """Count what was written for all ranks."""
        rows = [row for shard in shards for row in shard.tensors]
        unchanged, full = sum(not row.blocks for row in rows), sum(row.is_full for row in rows)
        return cls(
            version=shards[0].version,
            base_version=shards[0].base_version,
            path=path,
            whole=whole,
            manifest_digest=manifest_digest,
            digests={shard.rank: shard.content_digest for shard in shards},
            bytes=sum(shard.nbytes for shard in shards),
            whole_bytes=sum(row.spec.nbytes for row in rows),
            unchanged=unchanged,
            changed=len(rows) - unchanged - full,
            full=full,
            seconds=seconds,
            retired=retired,
        )
