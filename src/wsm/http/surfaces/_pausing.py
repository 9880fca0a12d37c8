"""What a trainer's word for a pause means for requests and KV blocks, and when a flush is done. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wsm.http import errors
from wsm.states.vocabulary import InFlightPolicy, KVPolicy

#: SGLang's and vLLM's words. ``retract`` computes what is kept anew after it.
_MODES: Mapping[str, tuple[InFlightPolicy, KVPolicy]] = {
    "abort": (InFlightPolicy.ABORT, KVPolicy.DROP),
    "wait": (InFlightPolicy.DRAIN, KVPolicy.DROP),
    "keep": (InFlightPolicy.KEEP, KVPolicy.DROP),
    "in_place": (InFlightPolicy.KEEP, KVPolicy.KEEP),
    "retract": (InFlightPolicy.KEEP, KVPolicy.DROP),
}


@dataclass(frozen=True)
class Pause:
    """A pause, as a hold says it.

    Parameters
    ----------
    in_flight : InFlightPolicy
        What becomes of running requests.
    kv_policy : KVPolicy
        What becomes of the blocks in the KV cache.
    """

    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.DROP


def pause_of(mode: str | None, *, clear_cache: bool | None = None) -> Pause:
    """Return what a pause means; without a mode it ends running requests.

    Parameters
    ----------
    mode : str or None
        ``abort``, ``wait`` and ``keep`` of vLLM; ``abort``, ``retract`` and ``in_place`` of SGLang.
    clear_cache : bool or None
        vLLM's: whether blocks are forgotten; None: as the mode says.

    Raises
    ------
    BadInputError
        If there is no such mode (code ``bad-body``).
    """
    if mode is not None and mode not in _MODES:
        problem = f"it is {mode!r}, and must be one of {', '.join(sorted(_MODES))}"
        raise errors.bad_body(field="mode", problem=problem)
    in_flight, kv_policy = _MODES[mode or "abort"]
    if clear_cache is not None:
        kv_policy = KVPolicy.DROP if clear_cache else KVPolicy.KEEP
    return Pause(in_flight, kv_policy)


class Flush(enum.Enum):
    """What a request to flush the KV cache means."""

    FLUSHED = "flushed"  # no block is there that older weights computed
    REQUESTS_OPEN = "requests open"  # refused: their blocks are in use
    TO_DO = "to do"  # the group has to stand still for it


def flush_of(hold: Mapping[str, Any] | None, *, requests_open: int | None) -> Flush:
    """Say what a flush means under a hold, or without one.

    Parameters
    ----------
    hold : mapping or None
        The hold as :attr:`wsm.status.facts.GroupStatus.hold` tells it; None: the group is open.
    requests_open : int or None
        How many requests run; None: not known here.
    """
    if hold is None:
        return Flush.REQUESTS_OPEN if requests_open else Flush.TO_DO
    if hold.get("kv_policy") == KVPolicy.DROP.value:
        return Flush.FLUSHED  # the hold has dropped them, and no step has computed any since
    if hold.get("in_flight") == InFlightPolicy.KEEP.value:
        return Flush.REQUESTS_OPEN
    return Flush.TO_DO
