"""The words of the state machines: states, events, tags, policies and plans, with their codes.

The integer codes of the four states that FastDeploy knows are FastDeploy's, so that its int32
status words stay readable (``ipc_signal_const.py``: NORMAL 0, UPDATING 1, CLEARING -1, CLEARED -2).
This module holds names only; which event is legal where is in :mod:`wsm.states.table`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class TableKey(enum.Enum):
    """An enumeration whose members are looked up at every look of a rank.

    The hash of :class:`enum.Enum` is a function in Python; this one is not.
    """

    __hash__ = object.__hash__


class WeightState(enum.IntEnum):
    """Where the weights of one rank are.

    ``PREPARED`` (new weights are loaded and verified, the group's decision is awaited) and
    ``FAULTED`` (a teardown failed, nothing may serve) have no counterpart in FastDeploy; an engine
    that reads FastDeploy's word sees UPDATING for the first and CLEARING for the second.
    """

    NORMAL = 0
    UPDATING = 1
    CLEARING = -1
    CLEARED = -2
    PREPARED = 2
    FAULTED = -3

    @property
    def fastdeploy_code(self) -> int:
        """The int32 that an engine without wsm sees for this state."""
        if self is WeightState.PREPARED:
            return int(WeightState.UPDATING)
        if self is WeightState.FAULTED:
            return int(WeightState.CLEARING)
        return int(self)


class KVState(enum.IntEnum):
    """Where the KV cache of one rank is; FastDeploy's four codes."""

    NORMAL = 0
    UPDATING = 1
    CLEARING = -1
    CLEARED = -2


class Admission(TableKey):
    """Whether a rank may step, whatever it has in memory; while HELD it stands."""

    OPEN = "open"
    HELD = "held"


class AdmissionEvent(TableKey):
    """What can happen to the admission of a rank."""

    HOLD = "hold"
    RELEASE = "release"


class After(enum.Enum):
    """What a command leaves of the group's admission once it is committed.

    AS_BEFORE leaves it: a group that is held stays held. HELD lets no step begin; SERVE ends a hold.
    """

    AS_BEFORE = "as-before"
    HELD = "held"
    SERVE = "serve"


class OnLease(enum.Enum):
    """What becomes of a hold whose lease has run out.

    STAY: nothing, and every status says so. SERVE: a group that has its committed version whole is released.
    """

    STAY = "stay"
    SERVE = "serve"


class WeightEvent(TableKey):
    """What can happen to the weights."""

    CLEAR = "clear"
    CLEARED = "cleared"
    UPDATE = "update"
    PREPARED = "prepared"
    COMMIT = "commit"
    FAIL = "fail"
    ABORT = "abort"
    LOST = "lost"


class KVEvent(TableKey):
    """What can happen to the KV cache."""

    CLEAR = "clear"
    CLEARED = "cleared"
    UPDATE = "update"
    REBUILT = "rebuilt"
    LOST = "lost"


class Tag(TableKey):
    """What a command can take away and bring back by itself. A rank serves only with both.

    WEIGHTS are the parameters, with whatever lives and dies with them (process groups that a clear shuts
    down, the DeepEP buffer). KV_CACHE is the memory of the KV caches, MTP's included.
    """

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"


#: What a command means that names no tags.
ALL_TAGS: frozenset[Tag] = frozenset(Tag)

_TAGS_IN_WORDS = {Tag.WEIGHTS: "the weights", Tag.KV_CACHE: "the KV cache"}


def sentence_of(tags: Iterable[Tag]) -> str:
    """Name tags in a sentence, always in one order; ``nothing`` if there is none."""
    wanted = frozenset(tags)
    return " and ".join(words for tag, words in _TAGS_IN_WORDS.items() if tag in wanted) or "nothing"


class InFlightPolicy(enum.Enum):
    """What becomes of requests that are running when a command arrives. One meaning each.

    ABORT ends them now and returns what they have so far; DRAIN admits no new ones and steps until
    the running ones are finished; KEEP freezes them where they are and continues them afterwards.
    """

    ABORT = "abort"
    DRAIN = "drain"
    KEEP = "keep"


class KVPolicy(enum.Enum):
    """What becomes of KV blocks that were computed by the weights before an update.

    DROP forgets every block; KEEP leaves all of them valid for the new weights, prefixes included;
    KEEP_IN_FLIGHT leaves those of running requests, which go on without being computed anew, and forgets
    every idle prefix, so that no new request reads what older weights computed.
    """

    DROP = "drop"
    KEEP = "keep"
    KEEP_IN_FLIGHT = "keep-in-flight"


class HotFallback(enum.Enum):
    """What becomes of an update that was asked for hot, where ranks cannot hold a second version.

    REFUSE leaves the group as it is and raises; IN_PLACE loads the version into the memory of the one that
    serves, which stops the group for as long as that takes.
    """

    REFUSE = "refuse"
    IN_PLACE = "in_place"


class OnFailure(enum.Enum):
    """What becomes of a group that served, once an update in place has overwritten its weights and failed.

    RESTORE loads the version again that served before. CLEAR leaves the group without weights.
    """

    RESTORE = "restore"
    CLEAR = "clear"


class UnknownTensors(enum.Enum):
    """What becomes of tensors in a version that the model does not have.

    REFUSE fails the load before anything is touched, or at the first of them where they are known only as
    they come. IGNORE leaves them out and counts them.
    """

    REFUSE = "refuse"
    IGNORE = "ignore"


class TransferMode(enum.Enum):
    """By which way a version travels to the ranks in one update, where the strategy leaves a choice.

    HOST: through host memory. IPC: shared device memory of this node. GPU_DIRECT: from the network into it.
    RDMA and GDR are FastDeploy's words: a rank's own tensors through host memory, applied by name; and a
    checkpoint straight into device memory, through the models' loaders.
    """

    HOST = "host"
    IPC = "ipc"
    GPU_DIRECT = "gpu_direct"
    RDMA = "rdma"
    GDR = "gdr"
