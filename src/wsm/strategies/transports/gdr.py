"""The strategy ``gdr``: a version over a transport, fed to the loaders of the models while it comes.

What FastDeploy calls GPU-direct: nothing is collected first, each tensor goes from the transport's buffer
into the parameter. The model's own loaders fuse, split and transpose; a model without loaders gets the
tensors by name, as with ``rsync``. Knows no particular transport, and applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.sections import Sections
from wsm.strategies.transports.by_version import ByVersion, RsyncSource, offered, seen
from wsm.strategies.transports.checkpoint_transfer_options import CheckpointTransferOptions
from wsm.strategies.transports.configured import RsyncConfig
from wsm.strategies.transports.transfer_modes import check_transfer_mode


@dataclass(frozen=True)
class GdrSource(RsyncSource):
    """One rank's way to the versions of a trainer, for models with loaders.

    Parameters
    ----------
    transport, rank, world_size, directory
        As for :class:`wsm.strategies.RsyncSource`.
    chunk_tensors : int
        How many tensors an auxiliary model gets at once (FastDeploy: ``gdr_mtp_chunk_size``).
    """

    chunk_tensors: int = 16


class Gdr(ByVersion):
    """Load by version, over a transport, through the models' loaders."""

    source_type = GdrSource

    def source(self, sections: Sections, rank: int, ranks: int) -> GdrSource:
        """Return one rank's way to the versions, and the size of an auxiliary model's chunks."""
        section = sections.of(RsyncConfig)
        chunk = CheckpointTransferOptions.of(section.rsync_config).mtp_chunk_size
        return GdrSource(self.transport(sections), rank, ranks, section.directory, chunk_tensors=chunk)

    def check_mode(self, section: RsyncConfig) -> None:
        """Refuse a transfer mode that is not open here.

        Raises
        ------
        RefusedError
            With those that are.
        """
        check_transfer_mode(section.transfer_mode, section.transport)

    def default_mode(self, sections: Sections) -> str:
        """Return the mode that is configured."""
        return sections.of(RsyncConfig).transfer_mode

    def in_mode(self, sections: Sections, mode: str) -> Sections:
        """Return the sections with this mode instead of the configured one; refuse one that is not open."""
        section = replace(sections.of(RsyncConfig), transfer_mode=mode)
        self.check_mode(section)
        return sections.replaced(RsyncConfig, section)

    @contextmanager
    def open(
        self, source: GdrSource, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> Iterator[Offer]:
        """Let the transport offer the version, for loaders; else as with ``rsync``."""
        with offered(source, version, observer) as offer:
            yield replace(offer, chunk_tensors=source.chunk_tensors)

    @contextmanager
    def preview(self, source: GdrSource, version: str | None) -> Iterator[Offer]:
        """Look at what :meth:`open` would offer."""
        with seen(source, version) as offer:
            yield replace(offer, chunk_tensors=source.chunk_tensors)
