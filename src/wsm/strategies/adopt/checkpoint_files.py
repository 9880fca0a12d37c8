"""The transport ``files``: an adopted version whole, for the loaders of models that cut it themselves.

``strategy: gdr`` with ``rsync: {transport: files, directory: ...}`` feeds each rank every tensor of a version
that was published for one rank, as adopted ones are, verified, to ``load_weights``. Nothing is kept open
between two loads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from wsm.errors import BadInputError
from wsm.strategies.conversation import Wanted
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.strategy import Sections
from wsm.strategies.transports.by_version import RsyncConfig, TransportKind


class CheckpointFiles:
    """Versions in files, each whole, for every rank alike.

    Parameters
    ----------
    directory : str
        The one that they are published in.
    """

    name = "files"

    def __init__(self, directory: str) -> None:
        # Each rank gets what is published as rank 0's of one: the whole model. Its manifests are required.
        self._source = SnapshotSource(
            directory, 0, device_id=0, world_size=1, shared_directory=None, verify="required"
        )
        self._strategy = IpcSnapshot()

    def open(self, wanted: Wanted, observer: LoadObserver) -> AbstractContextManager[Offer]:
        """Open a version; see :class:`wsm.strategies.transports.by_version.Transport`."""
        return self._strategy.open(self._source, wanted.version, observer)

    def close(self) -> None:
        """Do nothing: nothing is kept."""


def _build(sections: Sections) -> CheckpointFiles:
    directory = sections.of(RsyncConfig).directory
    if directory is None:
        raise BadInputError(
            "rsync.transport: files reads versions where they are published, and no directory is named; "
            "give rsync: {directory: ...}",
            code="files-without-directory",
        )
    return CheckpointFiles(directory)


FILES = TransportKind(_build, from_files=True)
