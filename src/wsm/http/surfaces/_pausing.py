"""What trainers' words mean: for halves of a group, for a pause, for a flush. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wsm.http import errors
from wsm.states.holding import Hold
from wsm.states.vocabulary import ALL_TAGS, InFlightPolicy, KVPolicy, Tag

#: What trainers call the two halves; what lives and dies with either has no tag of its own here.
_TAGS: Mapping[str, frozenset[Tag]] = {
    "weight": frozenset({Tag.WEIGHTS}),
    "weights": frozenset({Tag.WEIGHTS}),
    "kv_cache": frozenset({Tag.KV_CACHE}),
    "cuda_graph": frozenset(),
}

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


def flush_of(hold: Hold | None, *, requests_open: int | None) -> Flush:
    """Say what a flush means under a hold, or without one.

    Parameters
    ----------
    hold : Hold or None
        The hold that the group stands under; None: the group is open.
    requests_open : int or None
        How many requests run; None: not known here.
    """
    if hold is None:
        return Flush.REQUESTS_OPEN if requests_open else Flush.TO_DO
    if hold.kv_policy is KVPolicy.DROP:
        return Flush.FLUSHED  # the hold has dropped them, and no step has computed any since
    if hold.in_flight is InFlightPolicy.KEEP:
        return Flush.REQUESTS_OPEN
    return Flush.TO_DO


def tags_of(words: Iterable[str] | None) -> frozenset[Tag]:
    """Return the tags that a trainer names, one by one or joined by commas; None, or none at all: both.

    ``cuda_graph`` alone names nothing: captured graphs go and come with weights and KV cache.

    Raises
    ------
    BadInputError
        If a word names no half of a group.
    """
    named = [word.strip() for each in words or () for word in each.split(",") if word.strip()]
    for word in named:
        if word not in _TAGS:
            raise errors.bad_body(
                field="tags", problem=f"{word!r} is no tag; tags are {', '.join(sorted(_TAGS))}"
            )
    return frozenset().union(*(_TAGS[word] for word in named)) if named else ALL_TAGS


def query_flag(value: str | None, name: str, *, otherwise: bool) -> bool:
    """Return what a query says of a truth value, or `otherwise` where it says nothing.

    Raises
    ------
    BadInputError
        If it says neither true nor false.
    """
    if value is None:
        return otherwise
    if value.lower() in ("true", "1", "yes", "on"):
        return True
    if value.lower() in ("false", "0", "no", "off"):
        return False
    raise errors.bad_body(field=name, problem=f"it must be true or false, and is {value!r}")
