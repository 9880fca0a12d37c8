"""How weights arrive: snapshot files and their manifests, one registry of strategies, one applier.

:func:`load` and :func:`inspect` are the worker's side, :func:`publish_snapshot` the trainer's. Nothing here
knows states, words or actions; paddle is imported only to read a pickle that the user allowed.
"""

from wsm.strategies.load import LoadReport, Preview, inspect, load
from wsm.strategies.manifest import ShardManifest
from wsm.strategies.memory_target import MemoryTarget
from wsm.strategies.offer import ManifestScope
from wsm.strategies.publish import PublishReport, publish_snapshot
from wsm.strategies.registry import STRATEGIES
from wsm.strategies.retention import Retention
from wsm.strategies.snapshot_source import SnapshotSource
from wsm.strategies.staged_version import StagedVersion
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.strategies.version_file import MAX_VERSION, read_version, write_version
from wsm.strategies.version_manifest import VersionManifest

__all__ = [
    "MAX_VERSION",
    "STRATEGIES",
    "LoadReport",
    "ManifestScope",
    "MemoryTarget",
    "Preview",
    "PublishReport",
    "Retention",
    "ShardManifest",
    "SnapshotSource",
    "StagedVersion",
    "TensorSpec",
    "VersionManifest",
    "WeightTarget",
    "inspect",
    "load",
    "publish_snapshot",
    "read_version",
    "write_version",
]
