"""How weights arrive: snapshot files and their manifests, one registry of strategies, one applier.

:func:`load` and :func:`inspect` are the worker's side, :func:`publish_snapshot` the trainer's. Nothing here
knows states, words or actions; paddle is imported only to read a pickle that the user allowed.

====================================  ====================================================================
packages and modules                  responsible for
====================================  ====================================================================
tensor, digest, transposing           what a tensor is, the one digest, memory with its axes turned
checkpoint_models                     models that take a checkpoint by themselves
training_names, training_names_file   what a trainer calls the tensors of a model
offer, observer, errors               what a strategy yields, who follows it, what goes wrong
strategy, sections                    what a strategy is; what it reads of a configuration
registry                              the strategies by name, and those that other packages announce
own_sections                          what sections wsm's own strategies read
load                                  the worker's entry, and the memory that a load would take
inventory                             what files and shared memory really hold
applier                               the one place where bytes reach a model, and what is checked before
snapshot                              ``ipc_snapshot``: files, each rank its shard or a slice of others'
ipc                                   ``ipc``: memory that a trainer on this host shares
buckets                               ``ipc_async``: buckets that a trainer on this host streams
transports                            ``rsync`` and ``gdr``: versions over a transport, and CheckpointTransfer
mooncake                              the transport over Mooncake's engine
adopt                                 what trainers write, taken in as a version; the transport ``files``
delta                                 ``delta``: what changed since the version that a rank holds
trainer                               what all trainers' sides share
messages                              framed messages between peers, and their errors
documents                             sealed JSON: manifests, metas, lists
files                                 formats, names, directories, files written whole or not at all
byte_copy, paddle_dtypes              copying bytes with the lock of Python let go; dtypes of paddle by name
====================================  ====================================================================
"""

from wsm.strategies.adopt.adopt import Adoption, AdoptSettings, AdoptWay, adopt
from wsm.strategies.adopt.configured import adopt_settings
from wsm.strategies.adopt.deciding import Relabel
from wsm.strategies.applier.coverage import EVERY_NAME
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.buckets.sender import BucketSender, Sending, SendReport
from wsm.strategies.buckets.source import IpcAsyncSource
from wsm.strategies.delta.between import delta_between
from wsm.strategies.delta.publish import DeltaReport, publish_delta
from wsm.strategies.delta.source import DeltaSource
from wsm.strategies.files.version_file import read_version, write_version
from wsm.strategies.ipc.shared_device_tensors import SharedDeviceTensors
from wsm.strategies.ipc.shared_tensors import SharedReport, SharedTensors
from wsm.strategies.ipc.source import IpcSource
from wsm.strategies.load import LoadReport, Preview, inspect, load
from wsm.strategies.mooncake.mooncake_transport import MooncakeTransport
from wsm.strategies.mooncake.publisher import MooncakePublisher, MooncakeReport
from wsm.strategies.mooncake.transfer_engine import EngineSettings
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.registry import STRATEGIES, register_strategy
from wsm.strategies.sections import Sections
from wsm.strategies.snapshot.manifest import ShardManifest
from wsm.strategies.snapshot.publish import PublishReport, StagedVersion, publish_snapshot
from wsm.strategies.snapshot.source import SnapshotSource
from wsm.strategies.snapshot.version_manifest import VersionManifest
from wsm.strategies.strategy import Strategy
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.strategies.trainer.retention import Retention
from wsm.strategies.training_names import TrainingNames
from wsm.strategies.transports.by_version import GdrSource, RsyncSource
from wsm.strategies.transports.stream_manifest import with_manifest

__all__ = [
    "EVERY_NAME",
    "STRATEGIES",
    "AdoptSettings",
    "AdoptWay",
    "Adoption",
    "BucketSender",
    "DeltaReport",
    "DeltaSource",
    "EngineSettings",
    "GdrSource",
    "IpcAsyncSource",
    "IpcSource",
    "LoadReport",
    "ManifestScope",
    "MemoryTarget",
    "MooncakePublisher",
    "MooncakeReport",
    "MooncakeTransport",
    "Offer",
    "OfferedTensor",
    "Preview",
    "PublishReport",
    "Relabel",
    "Retention",
    "RsyncSource",
    "Sections",
    "SendReport",
    "Sending",
    "ShardManifest",
    "SharedDeviceTensors",
    "SharedReport",
    "SharedTensors",
    "SnapshotSource",
    "StagedVersion",
    "Strategy",
    "TensorSpec",
    "TrainingNames",
    "VersionManifest",
    "WeightTarget",
    "adopt",
    "adopt_settings",
    "delta_between",
    "inspect",
    "load",
    "publish_delta",
    "publish_snapshot",
    "read_version",
    "register_strategy",
    "with_manifest",
    "write_version",
]
