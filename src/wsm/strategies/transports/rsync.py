"""The strategy ``rsync``: one rank's shard by its version number, over a transport."""

from __future__ import annotations

from contextlib import AbstractContextManager

from wsm.strategies import errors
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.sections import Sections
from wsm.strategies.transports.by_version import ByVersion, RsyncSource, offered, seen
from wsm.strategies.transports.configured import RsyncConfig


class Rsync(ByVersion):
    """Load by version, over a transport."""

    source_type = RsyncSource

    def source(self, sections: Sections, rank: int, ranks: int) -> RsyncSource:
        """Return one rank's way to the versions."""
        directory = sections.of(RsyncConfig).directory
        return RsyncSource(self.transport(sections), rank, ranks, directory)

    def check_mode(self, section: RsyncConfig) -> None:
        """Refuse every transfer mode but the host's, which is what there is without modes.

        Raises
        ------
        RefusedError
            If another one is configured.
        """
        if section.transfer_mode != "host":
            problem = "the strategy rsync has no transfer modes"
            raise errors.transfer_mode_unavailable(mode=section.transfer_mode, problem=problem, available=())

    def open(
        self, source: RsyncSource, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> AbstractContextManager[Offer]:
        """Let the transport offer the version; see :func:`wsm.strategies.transports.by_version.offered`."""
        return offered(source, version, observer)

    def preview(self, source: RsyncSource, version: str | None) -> AbstractContextManager[Offer]:
        """Look at what :meth:`open` would offer."""
        return seen(source, version)
