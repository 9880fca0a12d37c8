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
journal                 what happened, written down and asked again
status                  what a group is doing, and which rank is to blame
metrics                 what a group does and did, for Prometheus
traces                  commands as spans: for Perfetto, and for OpenTelemetry
__main__                ``python -m wsm``
cli                     the command line
http                    groups commanded over HTTP, by trainers as they are and by programs
fleet                   many groups brought to one version, over HTTP
fastdeploy              FastDeploy's weight manager, as a rank of a group
torch                   weights and memory of an engine of torch, as surfaces
vllm                    updates inside vLLM: worker extension, and the server that asks its ranks
testing                 what tests of an engine need
config, config_reading  what a group is told, and how YAML and options are checked
command                 what travels with a command, and what a rank reports of it
committed_record        what a group has committed, and what its ranks said of that
labels                  what a version is called
receipt                 what a command returns
errors                  the errors that a caller can branch on, and what to do where the system says no
log, clock              what wsm logs; the clock that tests replace
payload                 what processes write for each other: typed structs as JSON
group_segment           the segment of a configured group
named                   what is imported when it is named
typed                   whether a value is what an annotation says
shared_directory        files where other users can write, and where this user's shared memory lies
own_descriptor          descriptors that a forked child must not use
ending                  signals that end a process in good order
printable               text that a terminal can show
======================  ==================================================================================
"""

from typing import TYPE_CHECKING

from wsm.named import import_when_named

if TYPE_CHECKING:
    from wsm.actions.base import Loaded as Loaded
    from wsm.actions.errors import PostconditionError as PostconditionError
    from wsm.actions.errors import PreconditionError as PreconditionError
    from wsm.config import Deadlines as Deadlines
    from wsm.config import EngineWordsConfig as EngineWordsConfig
    from wsm.config import WsmConfig as WsmConfig
    from wsm.config import load_config as load_config
    from wsm.config_reading import ConfigurationError as ConfigurationError
    from wsm.controller import Controller as Controller
    from wsm.controller import EngineBridge as EngineBridge
    from wsm.controller import GroupProcesses as GroupProcesses
    from wsm.controller import GroupStatus as GroupStatus
    from wsm.controller import Keeper as Keeper
    from wsm.controller import Pending as Pending
    from wsm.controller import Prepared as Prepared
    from wsm.controller import ProcessEnd as ProcessEnd
    from wsm.controller import RecoveryConfig as RecoveryConfig
    from wsm.controller.errors import ActionOverdueError as ActionOverdueError
    from wsm.controller.errors import CommandRefusedError as CommandRefusedError
    from wsm.controller.errors import CommandTimeoutError as CommandTimeoutError
    from wsm.controller.errors import CommandWithdrawnError as CommandWithdrawnError
    from wsm.controller.errors import DecisionHeldError as DecisionHeldError
    from wsm.controller.errors import EpochEndedError as EpochEndedError
    from wsm.controller.errors import MixedGroupError as MixedGroupError
    from wsm.controller.errors import RankFailedError as RankFailedError
    from wsm.controller.errors import RankLostError as RankLostError
    from wsm.controller.errors import RestartLimitError as RestartLimitError
    from wsm.controller.errors import UnsettledError as UnsettledError
    from wsm.errors import BadInputError as BadInputError
    from wsm.errors import GroupError as GroupError
    from wsm.errors import InternalError as InternalError
    from wsm.errors import NoRoomError as NoRoomError
    from wsm.errors import RefusedError as RefusedError
    from wsm.errors import UnfitError as UnfitError
    from wsm.errors import WsmError as WsmError
    from wsm.receipt import Outcome as Outcome
    from wsm.receipt import Receipt as Receipt
    from wsm.shared_directory import ForeignPathError as ForeignPathError
    from wsm.signals.errors import RoleBusyError as RoleBusyError
    from wsm.signals.errors import SegmentMissingError as SegmentMissingError
    from wsm.signals.errors import SegmentTruncatedError as SegmentTruncatedError
    from wsm.signals.errors import SlotTakenError as SlotTakenError
    from wsm.states.errors import CommandOpenError as CommandOpenError
    from wsm.states.errors import EpochUsedError as EpochUsedError
    from wsm.states.vocabulary import ALL_TAGS as ALL_TAGS
    from wsm.states.vocabulary import After as After
    from wsm.states.vocabulary import HotFallback as HotFallback
    from wsm.states.vocabulary import InFlightPolicy as InFlightPolicy
    from wsm.states.vocabulary import KVPolicy as KVPolicy
    from wsm.states.vocabulary import KVState as KVState
    from wsm.states.vocabulary import OnLease as OnLease
    from wsm.states.vocabulary import Tag as Tag
    from wsm.states.vocabulary import TransferMode as TransferMode
    from wsm.states.vocabulary import WeightState as WeightState
    from wsm.strategies.delta.source import DeltaBaseError as DeltaBaseError
    from wsm.strategies.errors import DigestMismatchError as DigestMismatchError
    from wsm.strategies.errors import LoadCancelledError as LoadCancelledError
    from wsm.strategies.errors import PublisherBusyError as PublisherBusyError
    from wsm.strategies.errors import SnapshotNotFoundError as SnapshotNotFoundError
    from wsm.strategies.errors import StorageError as StorageError
    from wsm.strategies.errors import UnreadableFileError as UnreadableFileError
    from wsm.strategies.errors import VersionExistsError as VersionExistsError
    from wsm.strategies.errors import VersionMismatchError as VersionMismatchError
    from wsm.strategies.peer_errors import PeerDiedError as PeerDiedError
    from wsm.strategies.peer_errors import PeerFailedError as PeerFailedError
    from wsm.strategies.peer_errors import PeerSilentError as PeerSilentError
    from wsm.strategies.snapshot.source import SnapshotConfig as SnapshotConfig
    from wsm.strategies.tensor import TensorReleasedError as TensorReleasedError
    from wsm.worker import HOLD as HOLD
    from wsm.worker import JOIN as JOIN
    from wsm.worker import SERVE as SERVE
    from wsm.worker import CacheParticipant as CacheParticipant
    from wsm.worker import StepPermit as StepPermit
    from wsm.worker import Turn as Turn
    from wsm.worker import Worker as Worker
    from wsm.worker.errors import FlipFailedError as FlipFailedError
    from wsm.worker.errors import NotServingError as NotServingError


__version__ = "0.1.0"


import_when_named(__name__)
