"""wsm: change the weights of a running LLM inference worker without losing a command, a token or a night.

A worker embeds :class:`Worker` in its event loop; a :class:`Controller` anywhere on the host commands the
group and gets a :class:`Receipt`. The state machines are in :mod:`wsm.states`, the words that the
processes exchange in :mod:`wsm.signals`, the rules that they follow in :mod:`wsm.states`, the units of
work in :mod:`wsm.actions`, the ways for weights to arrive in :mod:`wsm.strategies`.

======================  ==================================================================================
package or module       responsible for
======================  ==================================================================================
states                  everything that decides: tables, machines, pure functions
signals                 words in shared memory, and how processes wait for them
actions                 units of work, and the plans made of them
strategies              how weights arrive
worker                  the rank's side: ``poll()`` and ``step()`` in an engine's loop
controller              the other side: commands, their outcome, recovery
status                  what a group is doing, and which rank is to blame
metrics                 what a group does and did, for Prometheus
traces                  commands as spans: for Perfetto, and for OpenTelemetry
cli, rollout, demo      the command line, a reference engine, and a training loop on it
http                    groups commanded over HTTP, by trainers as they are and by programs
fastdeploy              FastDeploy's weight manager, as a rank of a group
testing                 what tests of an engine need
config, config_reading  what a group is told, and how options are checked
command, declared_plans what travels with a command; what a rank says that it can do
report                  what a rank reports
committed_record        what a group has committed, and what its ranks said of that
labels                  what a version is called
receipt                 what a command returns
errors                  the errors that a caller can branch on
labels                  what a version is called
log, clock              what wsm logs; the clock that tests replace
group_segment           the segment of a configured group
shared_directory        files in directories that other users can write
own_descriptor          descriptors that a forked child must not use
shortage                what is missing where the system says no, and the remedy
ending                  signals that end a process in good order
printable, yaml_reading text that a terminal can show; YAML without surprises
======================  ==================================================================================
"""

from wsm.actions.base import Loaded
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.config import (
    Deadlines,
    EngineWordsConfig,
    SnapshotConfig,
    WsmConfig,
    load_config,
)
from wsm.config_reading import ConfigurationError
from wsm.controller import (
    Controller,
    EngineBridge,
    GroupProcesses,
    GroupStatus,
    Keeper,
    Pending,
    Prepared,
    ProcessEnd,
    RecoveryConfig,
)
from wsm.controller.errors import (
    ActionOverdueError,
    CommandRefusedError,
    CommandTimeoutError,
    CommandWithdrawnError,
    DecisionHeldError,
    EpochEndedError,
    MixedGroupError,
    RankFailedError,
    RankLostError,
    RestartLimitError,
    UnsettledError,
)
from wsm.errors import BadInputError, GroupError, InternalError, NoRoomError, RefusedError, WsmError
from wsm.receipt import Outcome, Receipt
from wsm.shared_directory import ForeignPathError
from wsm.signals.errors import RoleBusyError, SegmentMissingError, SegmentTruncatedError, SlotTakenError
from wsm.states.errors import CommandOpenError, EpochUsedError
from wsm.states.vocabulary import (
    ALL_TAGS,
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    KVState,
    OnLease,
    Tag,
    TransferMode,
    WeightState,
)
from wsm.strategies.delta.errors import DeltaBaseError
from wsm.strategies.errors import (
    DigestMismatchError,
    LoadCancelledError,
    PublisherBusyError,
    SnapshotNotFoundError,
    StorageError,
    TensorReleasedError,
    UnreadableFileError,
    VersionExistsError,
    VersionMismatchError,
)
from wsm.strategies.messages.errors import PeerDiedError, PeerFailedError, PeerSilentError
from wsm.worker import HOLD, JOIN, SERVE, CacheParticipant, StepPermit, Turn, Worker
from wsm.worker.errors import FlipFailedError, NotServingError

__version__ = "0.1.0"

__all__ = [
    "ALL_TAGS",
    "HOLD",
    "JOIN",
    "SERVE",
    "ActionOverdueError",
    "After",
    "BadInputError",
    "CacheParticipant",
    "CommandOpenError",
    "CommandRefusedError",
    "CommandTimeoutError",
    "CommandWithdrawnError",
    "ConfigurationError",
    "Controller",
    "Deadlines",
    "DecisionHeldError",
    "DeltaBaseError",
    "DigestMismatchError",
    "EngineBridge",
    "EngineWordsConfig",
    "EpochEndedError",
    "EpochUsedError",
    "FlipFailedError",
    "ForeignPathError",
    "GroupError",
    "GroupProcesses",
    "GroupStatus",
    "HotFallback",
    "InFlightPolicy",
    "InternalError",
    "KVPolicy",
    "KVState",
    "Keeper",
    "LoadCancelledError",
    "Loaded",
    "MixedGroupError",
    "NoRoomError",
    "NotServingError",
    "OnLease",
    "Outcome",
    "PeerDiedError",
    "PeerFailedError",
    "PeerSilentError",
    "Pending",
    "PostconditionError",
    "PreconditionError",
    "Prepared",
    "ProcessEnd",
    "PublisherBusyError",
    "RankFailedError",
    "RankLostError",
    "Receipt",
    "RecoveryConfig",
    "RefusedError",
    "RestartLimitError",
    "RoleBusyError",
    "SegmentMissingError",
    "SegmentTruncatedError",
    "SlotTakenError",
    "SnapshotConfig",
    "SnapshotNotFoundError",
    "StepPermit",
    "StorageError",
    "Tag",
    "TensorReleasedError",
    "TransferMode",
    "Turn",
    "UnreadableFileError",
    "UnsettledError",
    "VersionExistsError",
    "VersionMismatchError",
    "WeightState",
    "Worker",
    "WsmConfig",
    "WsmError",
    "load_config",
]
