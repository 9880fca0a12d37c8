"""The strategy ``ipc_snapshot``: one rank's shard from files, FastDeploy's names, safetensors inside.

It puts together what :mod:`wsm.strategies.snapshot.lookup` finds and
:mod:`wsm.strategies.snapshot._shard_reader` has checked, and yields it as an offer; a version that was
written for another number of ranks comes from :mod:`wsm.strategies.snapshot._resliced_shard`. It applies
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from wsm.strategies import errors
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.sections import Sections
from wsm.strategies.snapshot._resliced_shard import open_resliced
from wsm.strategies.snapshot._shard_reader import OpenShard, open_shard, read_ahead
from wsm.strategies.snapshot._slice_reader import STAGING_BYTES
from wsm.strategies.snapshot.lookup import locate, locate_published
from wsm.strategies.snapshot.source import SnapshotConfig, SnapshotSource
from wsm.strategies.snapshot.version_manifest import read_version_manifest
from wsm.strategies.strategy import Strategy


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
            offer = _resliced(source, version, stack) or _own_shard(source, version, stack)
            if not offer.tensors:
                raise errors.empty_snapshot(where=", ".join(offer.files))
            yield offer

    def preview(self, source: SnapshotSource, version: str | None) -> AbstractContextManager[Offer]:
        """Open to look only, which files do not mind."""
        return self.open(source, version)


def _resliced(source: SnapshotSource, version: str | None, stack: ExitStack) -> Offer | None:
    """Offer this rank's slices of a version for another number of ranks; None if it is for this one."""
    if source.world_size is None:
        return None
    published = locate_published(source, version, stack)
    whole = None if published is None else read_version_manifest(published.directory)
    if published is None or whole is None or whole.world_size == source.world_size:
        return None
    shard = open_resliced(published, whole, source, source.world_size, stack)
    return Offer(
        version=whole.version,
        tensors=shard.tensors,
        files=shard.files,
        manifest_digest=whole.digest,
        manifest_scope=ManifestScope.GROUP,
        thread_bytes=STAGING_BYTES,
        parallel=True,
        read_bytes=shard.read_bytes,
    )


def _own_shard(source: SnapshotSource, version: str | None, stack: ExitStack) -> Offer:
    located = locate(source, version, stack)
    shard = open_shard(located, source, stack)
    read_ahead(shard.files, source.readahead_bytes)
    tensors = _offered(shard)
    digest, scope = _manifest_digest(shard)
    return Offer(
        version=shard.version,
        tensors=tensors,
        files=tuple(file.path for file in shard.files),
        manifest_digest=digest,
        manifest_scope=scope,
        ignored=located.files.ignored,
        peak_extra_bytes=sum(file.memory_bytes for file in shard.files),
        parallel=True,
    )


def _offered(shard: OpenShard) -> tuple[OfferedTensor, ...]:
    entries = () if shard.manifest is None else shard.manifest.tensors
    promised = {spec.name: digest for spec, digest, _, _ in entries}
    finite = shard.manifest is not None and shard.manifest.finite
    return tuple(
        OfferedTensor(spec, file.path, read_into, promised.get(spec.name), finite=finite)
        for file in shard.files
        for spec, read_into in file.readers()
    )


def _manifest_digest(shard: OpenShard) -> tuple[str | None, ManifestScope]:
    if shard.version_manifest is not None:
        return shard.version_manifest.digest, ManifestScope.GROUP
    if shard.manifest is not None:
        return shard.manifest.digest, ManifestScope.RANK
    return None, ManifestScope.LOADED
