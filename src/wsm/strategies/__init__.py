"""How weights arrive: snapshot files and their manifests, one registry of strategies, one applier.

:func:`load` and :func:`inspect` are the worker's side, :func:`publish_snapshot` the trainer's. Nothing here
knows states, words or actions; paddle is imported only to read a pickle that the user allowed.

====================================  ====================================================================
packages and modules                  responsible for
====================================  ====================================================================
tensor, digest, transposing           what a tensor is, the one digest, memory with its axes turned
checkpoint_models                     models that take a checkpoint by themselves
training_names                        what a trainer calls the tensors of a model
offer, observer, errors               what a strategy yields, who follows it, what goes wrong
strategy                              what a strategy is, and what it reads of a configuration
registry                              the strategies by name, and those that other packages announce
load                                  the worker's entry
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
peer_errors                           what goes wrong between a trainer and a rank that talk
conversation                          frames, addresses and refusals of a trainer and a rank that talk
promise                               what a publisher promises of a version, whatever way it travels
files                                 formats, names, directories, files written whole or not at all
byte_copy, dtype_names, finite        copies with the lock of Python let go; names of dtypes; NaN refused
====================================  ====================================================================
"""

from typing import TYPE_CHECKING

from wsm.named import import_when_named

if TYPE_CHECKING:
    from wsm.strategies.adopt.adopt import Adoption as Adoption
    from wsm.strategies.adopt.adopt import AdoptSettings as AdoptSettings
    from wsm.strategies.adopt.adopt import AdoptWay as AdoptWay
    from wsm.strategies.adopt.adopt import adopt as adopt
    from wsm.strategies.adopt.adopt import adopt_settings as adopt_settings
    from wsm.strategies.adopt.record import Relabel as Relabel
    from wsm.strategies.applier.coverage import EVERY_NAME as EVERY_NAME
    from wsm.strategies.applier.memory_target import MemoryTarget as MemoryTarget
    from wsm.strategies.buckets.sender import BucketSender as BucketSender
    from wsm.strategies.buckets.sender import Sending as Sending
    from wsm.strategies.buckets.sender import SendReport as SendReport
    from wsm.strategies.buckets.source import IpcAsyncSource as IpcAsyncSource
    from wsm.strategies.delta.publish import DeltaReport as DeltaReport
    from wsm.strategies.delta.publish import delta_between as delta_between
    from wsm.strategies.delta.publish import publish_delta as publish_delta
    from wsm.strategies.delta.source import DeltaSource as DeltaSource
    from wsm.strategies.files.version_file import read_version as read_version
    from wsm.strategies.files.version_file import write_version as write_version
    from wsm.strategies.ipc.shared_device_tensors import SharedDeviceTensors as SharedDeviceTensors
    from wsm.strategies.ipc.shared_tensors import SharedReport as SharedReport
    from wsm.strategies.ipc.shared_tensors import SharedTensors as SharedTensors
    from wsm.strategies.ipc.source import IpcSource as IpcSource
    from wsm.strategies.load import LoadReport as LoadReport
    from wsm.strategies.load import Preview as Preview
    from wsm.strategies.load import inspect as inspect
    from wsm.strategies.load import load as load
    from wsm.strategies.mooncake.mooncake_transport import MooncakeTransport as MooncakeTransport
    from wsm.strategies.mooncake.publisher import MooncakePublisher as MooncakePublisher
    from wsm.strategies.mooncake.publisher import MooncakeReport as MooncakeReport
    from wsm.strategies.mooncake.source import EngineSettings as EngineSettings
    from wsm.strategies.offer import ManifestScope as ManifestScope
    from wsm.strategies.offer import Offer as Offer
    from wsm.strategies.offer import OfferedTensor as OfferedTensor
    from wsm.strategies.registry import STRATEGIES as STRATEGIES
    from wsm.strategies.registry import register_strategy as register_strategy
    from wsm.strategies.snapshot.manifest import ShardManifest as ShardManifest
    from wsm.strategies.snapshot.manifest import VersionManifest as VersionManifest
    from wsm.strategies.snapshot.publish import PublishReport as PublishReport
    from wsm.strategies.snapshot.publish import SnapshotPublisher as SnapshotPublisher
    from wsm.strategies.snapshot.publish import StagedVersion as StagedVersion
    from wsm.strategies.snapshot.publish import publish_snapshot as publish_snapshot
    from wsm.strategies.snapshot.source import SnapshotSource as SnapshotSource
    from wsm.strategies.strategy import Sections as Sections
    from wsm.strategies.strategy import Strategy as Strategy
    from wsm.strategies.tensor import TensorSpec as TensorSpec
    from wsm.strategies.tensor import WeightTarget as WeightTarget
    from wsm.strategies.trainer.retention import Retention as Retention
    from wsm.strategies.training_names import TrainingNames as TrainingNames
    from wsm.strategies.transports.by_version import GdrSource as GdrSource
    from wsm.strategies.transports.by_version import RsyncSource as RsyncSource
    from wsm.strategies.transports.stream_manifest import with_manifest as with_manifest


import_when_named(__name__)
