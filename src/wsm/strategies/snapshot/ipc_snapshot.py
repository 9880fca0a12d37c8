"""The strategy ``ipc_snapshot``: one rank's shard from files, FastDeploy's names, safetensors inside.

It offers what :func:`wsm.strategies.snapshot.store.find` has found: the rank's own shard, or its slices of a
version that was written for another number of ranks (:mod:`wsm.strategies.snapshot._resliced_shard`). It
applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.snapshot._resliced_shard import open_resliced
from wsm.strategies.snapshot.source import SnapshotConfig, SnapshotSource
from wsm.strategies.snapshot.store import FoundVersion, find, open_own, read_ahead
from wsm.strategies.strategy import Sections, Strategy


class IpcSnapshot(Strategy):
    """Load from snapshot files."""

    source_type = SnapshotSource
    sections = (SnapshotConfig,)
    rereadable = True

    def source(self, sections: Sections, rank: int, ranks: int) -> SnapshotSource:
        """Return one rank's view of the configured directory."""
        return sections.of(SnapshotConfig).source(SnapshotSource, rank, ranks)

    def retired_from(self, sections: Sections) -> str:
        """Return the directory that versions are published in."""
        return sections.of(SnapshotConfig).directory

    @contextmanager
    def open(
        self,
        source: SnapshotSource,
        version: str | None,
        observer: LoadObserver = UNOBSERVED,  # noqa: ARG002 - of the protocol; nothing here waits
    ) -> Iterator[Offer]:
        """Find, open and check the shard of the source's rank. Blocks on metadata only.

        Parameters
        ----------
        source : SnapshotSource
            Where to look.
        version : str or None
            The version that it must hold; None for the one that ``version.yaml`` announces.
        observer : LoadObserver
            Not asked: nothing here waits.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If there is nothing, or not what was asked for. Nothing was changed.
        """
        with ExitStack() as stack:
            found = find(source, version, stack)
            publication = found.publication
            if publication is not None and source.world_size not in (None, publication.world_size):
                yield open_resliced(found, publication, source, stack)
            else:
                yield _own_shard(found, source, stack)


def _own_shard(found: FoundVersion, source: SnapshotSource, stack: ExitStack) -> Offer:
    version, parts = open_own(found, source, stack)
    if source.readahead_bytes:
        read_ahead(parts, source.readahead_bytes)
    promise, publication = found.promise, found.publication
    digest, scope = None, ManifestScope.LOADED
    if publication is not None:
        digest, scope = publication.group_digest, ManifestScope.GROUP
    elif promise is not None:
        digest, scope = promise.placed_digest, ManifestScope.RANK
    promised = {} if promise is None else {spec.name: digest for spec, digest, _ in promise.tensors}
    finite = promise is not None and promise.finite
    return Offer(
        version=version,
        tensors=tuple(
            OfferedTensor(spec, part.path, read_into, promised.get(spec.name), finite=finite)
            for part in parts
            for spec, read_into in part.readers()
        ),
        files=tuple(part.path for part in parts),
        manifest_digest=digest,
        manifest_scope=scope,
        publication=None if publication is None else publication.publication,
        ignored=found.ignored,
        peak_extra_bytes=sum(part.memory_bytes for part in parts),
        parallel=True,
    )
