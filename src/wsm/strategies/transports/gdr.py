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
from wsm.strategies.transports.rsync import Rsync, RsyncSource


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


class Gdr:
    """Load by version, over a transport, through the models' loaders."""

    source_type = GdrSource

    @contextmanager
    def open(
        self, source: GdrSource, version: int | None, observer: LoadObserver = UNOBSERVED
    ) -> Iterator[Offer]:
        """Let the transport offer the version, for loaders; else as ``Rsync.open``."""
        with Rsync().open(source, version, observer) as offer:
            yield replace(offer, chunk_tensors=source.chunk_tensors)

    @contextmanager
    def preview(self, source: GdrSource, version: int | None) -> Iterator[Offer]:
        """Look at what :meth:`open` would offer."""
        with Rsync().preview(source, version) as offer:
            yield replace(offer, chunk_tensors=source.chunk_tensors)
