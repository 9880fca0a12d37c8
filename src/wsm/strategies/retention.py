"""Which published versions stay, and how an old one goes without disturbing anyone who reads it.

A version vanishes by a rename to a hidden name, in one step; its files are removed after that. One that
a reader holds (:meth:`wsm.strategies.snapshot_directory.SnapshotDirectory.hold`) is left for the next time.
Called under the publisher's lock. Knows nothing about tensors.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from wsm.strategies import snapshot_names
from wsm.strategies.errors import ManifestError
from wsm.strategies.manifest import ShardManifest
from wsm.strategies.version_manifest import VersionManifest

_REMOVED_PREFIX = ".removed-"


def retire(versions: Path, keep: int, protect: Collection[int]) -> tuple[int, ...]:
    """Remove all but the `keep` newest versions and the protected ones; return which went. Blocks.

    Newest is by time of publication, not by number: a trainer that went back to version 3 after 7 still
    publishes something new. Versions that are being read stay until the next call.
    """
    published = sorted(
        (int(path.name) for path in versions.iterdir() if path.name.isdecimal()),
        key=lambda version: ((versions / str(version)).stat().st_mtime_ns, version),
        reverse=True,
    )
    doomed = [version for version in published[max(keep, 1) :] if version not in protect]
    return tuple(version for version in sorted(doomed) if _remove(versions / str(version)))


def move_away(path: Path) -> None:
    """Take a version out of sight in one step, whoever reads it, and remove it. Blocks."""
    hidden = path.with_name(f"{_REMOVED_PREFIX}{path.name}-{secrets.token_hex(4)}")
    path.rename(hidden)
    shutil.rmtree(hidden)


def finish_removals(versions: Path) -> None:
    """Remove what a publisher that died had already taken out of sight. Blocks."""
    for leftover in versions.glob(f"{_REMOVED_PREFIX}*"):
        shutil.rmtree(leftover)


def standing_manifest(path: Path) -> VersionManifest | None:
    """Return the manifest of the version at `path`; None if there is no version, or no usable manifest."""
    file = path / snapshot_names.VERSION_MANIFEST
    try:
        return VersionManifest.decode(file.read_bytes(), file=str(file))
    except (FileNotFoundError, NotADirectoryError, ManifestError):
        return None


def standing_shards(path: Path, manifest: VersionManifest) -> tuple[ShardManifest, ...]:
    """Return the manifests of all ranks of the version at `path`.

    Raises
    ------
    ManifestError, OSError
        If one of them is missing or damaged.
    """
    files = [path / shard.manifest for shard in manifest.shards]
    return tuple(ShardManifest.decode(file.read_bytes(), file=str(file)) for file in files)


def _remove(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks on directories here; open files survive their removal anyway
    else:
        move_away(path)
        return True
    finally:
        os.close(descriptor)
    move_away(path)
    return True
