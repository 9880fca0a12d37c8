"""The strategy ``ipc_snapshot``: one rank's shard from files, FastDeploy's names, safetensors inside.

It puts together what :mod:`wsm.strategies.snapshot_lookup` finds and :mod:`wsm.strategies.shard_reader`
has checked, and yields it as an offer. It applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from wsm.strategies.errors import EmptySnapshotError
from wsm.strategies.gc_pause import collector_paused
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.shard_reader import OpenShard, open_shard
from wsm.strategies.snapshot_lookup import locate
from wsm.strategies.snapshot_source import SnapshotSource


class IpcSnapshot:
    """Load from snapshot files."""

    source_type = SnapshotSource

    @contextmanager
    def open(
        self,
        source: SnapshotSource,
        version: int | None,
        observer: LoadObserver = UNOBSERVED,  # noqa: ARG002 - of the protocol; nothing here waits
    ) -> Iterator[Offer]:
        """Find, open and check the shard of the source's rank. Blocks on metadata only.

        Parameters
        ----------
        source : SnapshotSource
            Where to look.
        version : int or None
            The version that it must hold; None for the one that ``version.yaml`` announces.
        observer : LoadObserver
            Not asked: nothing here waits for anybody.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If there is nothing, or not what was asked for. Nothing was changed.
        """
        with ExitStack() as stack:
            located = locate(source, version, stack)
            with collector_paused():
                shard = open_shard(located, source, stack)
                tensors = _offered(shard)
            if not tensors:
                raise EmptySnapshotError(where=", ".join(file.path for file in shard.files))
            digest, scope = _manifest_digest(shard)
            yield Offer(
                version=shard.version,
                tensors=tensors,
                files=tuple(file.path for file in shard.files),
                manifest_digest=digest,
                manifest_scope=scope,
                ignored=located.files.ignored,
                peak_extra_bytes=sum(file.memory_bytes for file in shard.files),
                parallel=True,
            )

    def preview(self, source: SnapshotSource, version: int | None) -> AbstractContextManager[Offer]:
        """Open to look only, which files do not mind."""
        return self.open(source, version)


def _offered(shard: OpenShard) -> tuple[OfferedTensor, ...]:
    entries = () if shard.manifest is None else shard.manifest.tensors
    promised = {spec.name: digest for spec, digest, _, _ in entries}
    return tuple(
        OfferedTensor(spec, file.path, read_into, promised.get(spec.name))
        for file in shard.files
        for spec, read_into in file.readers()
    )


def _manifest_digest(shard: OpenShard) -> tuple[str | None, ManifestScope]:
    if shard.version_manifest is not None:
        return shard.version_manifest.digest, ManifestScope.GROUP
    if shard.manifest is not None:
        return shard.manifest.digest, ManifestScope.RANK
    return None, ManifestScope.LOADED
