"""How weights arrive: snapshot files and their manifests, one registry of strategies, one applier.

:func:`load` and :func:`inspect` are the worker's side, :func:`publish_snapshot` the trainer's. Nothing here
knows states, words or actions; paddle is imported only to read a pickle that the user allowed.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
tensor, digest, offer                 what a tensor is, the one digest, what a strategy yields
registry, load                        the strategies by name; the worker's entry
apply, coverage                       the one place where bytes reach a model, and what is checked before
ties                                  tensors that a model has under several names
transposing                           memory whose axes lie the other way round
admission                             whether there is memory for it
ipc_snapshot                          the strategy for files: lookup and reader put together
ipc                                   the strategy for memory that a trainer on this host shares
ipc_metas, pickled_metas              its metas files, ours and FastDeploy's
shared_tensors                        its trainer's side: who owns the memory, and until when
shared_device_tensors                 the same for memory on a GPU, which is not copied
shared_segment, byte_leases           shared memory with one owner and leases for its readers
ipc_async, stream_source              the strategy for buckets that a trainer on this host streams
bucket_frames, bucket_messages        what is said, as bytes and as values; bucket_plan: what lies where
bucket_receiver, bucket_socket        the rank's end; the socket that both ends use
bucket_sender, bucket_sending         the trainer's end: all ranks of one version
bucket_stream                         what the trainer says to one rank
delta, delta_source                   the strategy for changes of the version that a rank holds
delta_route, delta_base               from what, and over which deltas, a version is reached
delta_reader                          one rank's delta, opened and checked
delta_blocks, delta_codec             how a change is cut into blocks; their bytes
delta_shard, delta_manifest           what a rank's delta, and that of all ranks, consists of
publish_delta, delta_report           its trainer's side, and what became of it
delta_between                         the delta between two versions that are published already
staged_delta, delta_writer            made visible at once; one rank's blocks
published, publisher_lock             what a directory holds; one publisher at a time
trainer_report                        what a trainer is told, whatever the way
inventory                             what files and shared memory really hold, and how two of them differ
rsync, transport                      the strategy for versions over a transport, and what one is
gdr, transfer_modes                   the same for a whole checkpoint; by which way it travels
feeding, loaders, auxiliary_names     a checkpoint fed to models' own loaders; which names are MTP's
checkpoint_transfer                   FastDeploy's closed package as a transport; its options in *_options
tensor_stream, stream_manifest        tensors that come one by one, and the promise that travels first
foreign_thread, foreign_tensors       what a package that wsm does not know runs in, and hands over
mooncake_transport, mooncake_reader   the transport over Mooncake's engine, and its reads ahead
mooncake_engine, mooncake_plan        the engine as wsm uses it; where tensors lie, and how they are read
mooncake_publisher, mooncake_memory   the trainer's side; the memory that it lets ranks read
mooncake_desk, mooncake_lease(s)      both ends of a lease on that memory
mooncake_messages, mooncake_channel   what is said about it, and the connection
observer, copying                     who follows a load; copying and digesting in one pass
source_config                         what a configuration says about each source
snapshot_source, snapshot_names       where to look, and what files are called
snapshot_lookup, snapshot_files       in which directory a shard lies, and in which files
snapshot_directory, device_id         a directory held open; the device id in the names
shard_reader, part_file               a shard opened and checked; one file of it, by its format
safetensors_*, pickle_file            the two formats
manifest, version_manifest            what a shard, and a version of all ranks, consists of
publish, staged_version, retention    the trainer's side: write, make visible at once, retire
shard_writer, trainer_tensors         one rank's parts; what a trainer may hand over
version_file                          ``version.yaml``
convert, paddle_state                 pickles turned into safetensors, by those who trust them
====================================  ====================================================================
"""

from wsm.strategies.bucket_sender import BucketSender, Sending, SendReport
from wsm.strategies.delta_between import delta_between
from wsm.strategies.delta_report import DeltaReport
from wsm.strategies.delta_source import DeltaSource
from wsm.strategies.gdr import GdrSource
from wsm.strategies.ipc import IpcSource
from wsm.strategies.load import LoadReport, Preview, inspect, load
from wsm.strategies.manifest import ShardManifest
from wsm.strategies.memory_target import MemoryTarget
from wsm.strategies.mooncake_engine import EngineSettings
from wsm.strategies.mooncake_publisher import MooncakePublisher, MooncakeReport
from wsm.strategies.mooncake_transport import MooncakeTransport
from wsm.strategies.offer import ManifestScope
from wsm.strategies.publish import PublishReport, publish_snapshot
from wsm.strategies.publish_delta import publish_delta
from wsm.strategies.registry import STRATEGIES
from wsm.strategies.retention import Retention
from wsm.strategies.rsync import RsyncSource
from wsm.strategies.shared_device_tensors import SharedDeviceTensors
from wsm.strategies.shared_tensors import SharedReport, SharedTensors
from wsm.strategies.snapshot_source import SnapshotSource
from wsm.strategies.staged_version import StagedVersion
from wsm.strategies.stream_manifest import with_manifest
from wsm.strategies.stream_source import IpcAsyncSource
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.strategies.version_file import MAX_VERSION, read_version, write_version
from wsm.strategies.version_manifest import VersionManifest

__all__ = [
    "MAX_VERSION",
    "STRATEGIES",
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
    "Preview",
    "PublishReport",
    "Retention",
    "RsyncSource",
    "SendReport",
    "Sending",
    "ShardManifest",
    "SharedDeviceTensors",
    "SharedReport",
    "SharedTensors",
    "SnapshotSource",
    "StagedVersion",
    "TensorSpec",
    "VersionManifest",
    "WeightTarget",
    "delta_between",
    "inspect",
    "load",
    "publish_delta",
    "publish_snapshot",
    "read_version",
    "with_manifest",
    "write_version",
]
