"""Published versions that may be loaded again, held so that no publisher retires them meanwhile.

A pin is the kernel's shared lock on the version's directory, as a reader holds it while it reads
(:meth:`wsm.strategies.files.snapshot_directory.SnapshotDirectory.hold`), for longer. It ends with the process
that has it; a publisher leaves the version for the next time. Knows no groups, words or tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from wsm.errors import BadInputError
from wsm.strategies.files import snapshot_names
from wsm.strategies.files.snapshot_directory import SnapshotDirectory


class VersionPins:
    """The pins of one process in one snapshot directory. For one thread.

    Parameters
    ----------
    directory : path, str or None
        Where versions are published; None: nothing is published there, and nothing is pinned.
    """

    def __init__(self, directory: Path | str | None) -> None:
        self._directory = directory
        self._held: dict[str, SnapshotDirectory] = {}

    @property
    def held(self) -> frozenset[str]:
        """The versions that are pinned."""
        return frozenset(self._held)

    def add(self, version: str) -> bool:
        """Pin a version, besides what is pinned; return whether it is. Does not block.

        A version that does not exist, or that a publisher has begun to retire, is not pinned: its load says
        so. A version that was published again in the meantime is pinned as it is now.
        """
        if self._directory is None:
            return False
        before = self._held.get(version)
        if before is not None and before.hold():
            return True
        self._let_go(version)
        with suppress(OSError, BadInputError):
            path = Path(self._directory) / snapshot_names.VERSIONS_DIRECTORY / str(version)
            place = SnapshotDirectory(str(path), boundary=str(self._directory))
            if place.hold():
                self._held[version] = place
                return True
            place.close()
        return False

    def keep(self, versions: Collection[str | None]) -> None:
        """Let go of every version but these. Adds none."""
        for version in self._held.keys() - set(versions):
            self._let_go(version)

    def close(self) -> None:
        """Let go of all. Idempotent."""
        self.keep(())

    def _let_go(self, version: str) -> None:
        place = self._held.pop(version, None)
        if place is not None:
            place.close()
