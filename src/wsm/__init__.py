"""wsm: change the weights of a running LLM inference worker without losing a command, a token or a night.

A worker embeds :class:`Worker` in its event loop; a :class:`Controller` anywhere on the host commands the
group and gets a :class:`Receipt`. The state machines are in :mod:`wsm.states`, the words that the
processes exchange in :mod:`wsm.signals`, the rules that they follow in :mod:`wsm.states`, the units of
work in :mod:`wsm.actions`, the ways for weights to arrive in :mod:`wsm.strategies`.
"""

from wsm.config import (
    ConfigurationError,
    Deadlines,
    EngineWordsConfig,
    SnapshotConfig,
    WsmConfig,
    load_config,
)
from wsm.controller import Controller, EngineBridge, GroupStatus, Pending
from wsm.errors import BadInputError, GroupError, InternalError, RefusedError, WsmError
from wsm.receipt import Outcome, Receipt
from wsm.states.vocabulary import (
    ALL_TAGS,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    KVState,
    Tag,
    TransferMode,
    WeightState,
)
from wsm.worker import HOLD, JOIN, SERVE, CacheParticipant, StepPermit, Turn, Worker

__version__ = "0.1.0"

__all__ = [
    "ALL_TAGS",
    "HOLD",
    "JOIN",
    "SERVE",
    "BadInputError",
    "CacheParticipant",
    "ConfigurationError",
    "Controller",
    "Deadlines",
    "EngineBridge",
    "EngineWordsConfig",
    "GroupError",
    "GroupStatus",
    "HotFallback",
    "InFlightPolicy",
    "InternalError",
    "KVPolicy",
    "KVState",
    "Outcome",
    "Pending",
    "Receipt",
    "RefusedError",
    "SnapshotConfig",
    "StepPermit",
    "Tag",
    "TransferMode",
    "Turn",
    "WeightState",
    "Worker",
    "WsmConfig",
    "WsmError",
    "load_config",
]
