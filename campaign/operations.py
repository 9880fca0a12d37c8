"""What a group is asked for while a fault strikes: where each operation begins, its command, and its endings.

Plain data. ``clear``, ``update``, ``in_place`` and ``hot`` are about weights and KV cache together; the
halves are about one of them, asked for in both orders; the policies say what becomes of KV blocks. An ending
is where the tables let a group be afterwards: one that was not touched, one that was, and one that lost a
participant and was restored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag, WeightState
from wsm.status.facts import GroupStatus

WEIGHTS, KV_CACHE = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})

_SERVING = ("old version", "new version")
_ALONE = {Tag.WEIGHTS: "weights alone", Tag.KV_CACHE: "KV cache alone"}


class Begin(enum.Enum):
    """What a group holds before the operation."""

    SERVING = "both, and it serves"
    CLEARED = "nothing"
    WEIGHTS_ALONE = "weights, and no KV cache"
    KV_ALONE = "a KV cache, and no weights"
    HELD = "both, and it is held"


@dataclass(frozen=True)
class Operation:
    """One operation.

    Parameters
    ----------
    command : str
        ``clear``, ``update``, ``hot``, ``hold`` or ``release``; of a prepared one ``update`` or ``hot``.
    begin : Begin
        What the group holds before.
    endings, recovered : tuple of str
        Where it may be after a fault, and after one that cost it a participant.
    brings_weights : bool
        Whether a new version is published for it.
    options : mapping
        Keywords of the controller's call.
    decision : str
        What its caller says once all ranks are PREPARED, ``commit`` or ``abort``; empty: it is not asked.
    leased : bool
        Whether a lease holds that decision, and no process.
    """

    command: str
    begin: Begin
    endings: tuple[str, ...] = _SERVING
    recovered: tuple[str, ...] = _SERVING
    brings_weights: bool = True
    options: Mapping[str, Any] | None = None
    decision: str = ""
    leased: bool = False

    @property
    def kv_policy(self) -> KVPolicy:
        """What becomes of KV blocks."""
        found: KVPolicy = (self.options or {}).get("kv_policy", KVPolicy.DROP)
        return found

    @property
    def is_half(self) -> bool:
        """Whether it is about weights or KV cache alone, or begins with one of them missing."""
        return "tags" in (self.options or {}) or self.begin in (Begin.WEIGHTS_ALONE, Begin.KV_ALONE)


def _clear(begin: Begin, *endings: str, keeps: bool = False, tags: frozenset[Tag]) -> Operation:
    recovered = ("old version", "CLEARED") if begin is Begin.SERVING else ("CLEARED",)
    options = {"tags": tags, **({"kv_policy": KVPolicy.KEEP} if keeps else {})}
    return Operation("clear", begin, (*endings, "CLEARED", "FAULTED"), recovered, False, options)


def _wake(begin: Begin, *endings: str, tags: frozenset[Tag] | None = None) -> Operation:
    loads = tags is None or Tag.WEIGHTS in tags
    recovered = (*_SERVING, "CLEARED") if set(endings) & set(_SERVING) else ("CLEARED",)
    return Operation(
        "update", begin, (*endings, "CLEARED"), recovered, loads, {"tags": tags} if tags else None
    )


#: Everything at once, with blocks that are dropped.
COMMANDS: dict[str, Operation] = {
    "clear": Operation(
        "clear",
        Begin.SERVING,
        ("old version", "CLEARED", "FAULTED"),
        ("old version", "CLEARED"),
        brings_weights=False,
    ),
    "update": Operation("update", Begin.CLEARED, ("new version", "CLEARED"), ("new version", "CLEARED")),
    "in_place": Operation("update", Begin.SERVING, (*_SERVING, "CLEARED")),
    "hot": Operation("hot", Begin.SERVING),
}

#: Weights and KV cache one by one: away in both orders, back in both orders, and weights replaced while the
#: cache is away.
HALVES: dict[str, Operation] = {
    "clear-weights": _clear(Begin.SERVING, "old version", "KV cache alone", tags=WEIGHTS),
    "clear-weights-keep": _clear(Begin.SERVING, "old version", "KV cache alone", tags=WEIGHTS, keeps=True),
    "clear-kv": _clear(Begin.SERVING, "old version", "weights alone", tags=KV_CACHE),
    "clear-kv-last": _clear(Begin.KV_ALONE, "KV cache alone", tags=KV_CACHE),
    "clear-weights-last": _clear(Begin.WEIGHTS_ALONE, "weights alone", tags=WEIGHTS),
    "wake-weights-first": _wake(Begin.CLEARED, "weights alone", tags=WEIGHTS),
    "wake-kv-first": _wake(Begin.CLEARED, "KV cache alone", tags=KV_CACHE),
    "wake-weights": _wake(Begin.KV_ALONE, "KV cache alone", "new version", tags=WEIGHTS),
    "wake-kv": _wake(Begin.WEIGHTS_ALONE, "weights alone", "old version", tags=KV_CACHE),
    "reload-weights": _wake(Begin.WEIGHTS_ALONE, "weights alone", tags=WEIGHTS),
    "reload-and-wake": _wake(Begin.WEIGHTS_ALONE, "weights alone", "new version"),
}

_KEEPS = {"keep": KVPolicy.KEEP, "keep-in-flight": KVPolicy.KEEP_IN_FLIGHT}

#: Updates that keep blocks which older weights computed, and the requests that read them.
POLICIES: dict[str, Operation] = {
    f"{name}-{kept}": Operation(
        COMMANDS[name].command,
        Begin.SERVING,
        COMMANDS[name].endings,
        options={"kv_policy": policy, "in_flight": InFlightPolicy.KEEP},
    )
    for name in ("in_place", "hot")
    for kept, policy in _KEEPS.items()
}

_HELD, _STANDING = ("held",), ("old version", "held")

#: Holds and releases, and commands under a hold.
HOLDS: dict[str, Operation] = {
    "hold": Operation("hold", Begin.SERVING, _STANDING, _STANDING, False, {"in_flight": InFlightPolicy.KEEP}),
    "release": Operation("release", Begin.HELD, _STANDING, _STANDING, brings_weights=False),
    "held-in_place": Operation("update", Begin.HELD, ("held", "held, without memory"), _HELD),
    "held-hot": Operation("hot", Begin.HELD, _HELD, _HELD),
    "held-serve": Operation(
        "update",
        Begin.HELD,
        ("held", "held, without memory", "new version"),
        ("held", "new version"),
        options={"after": "serve"},
    ),
}


def _prepare(
    command: str,
    *endings: str,
    begin: Begin = Begin.SERVING,
    decision: str = "commit",
    leased: bool = False,
    **options: str,
) -> Operation:
    return Operation(command, begin, endings, endings, True, options, decision, leased)


#: A rank could not release its memory, and was not cleared again yet.
_UNREPAIRED = ("MIXED", "FAULTED")

#: Updates whose decision their caller makes: a process that lives, or a lease.
PREPARES: dict[str, Operation] = {
    "prepare-commit": _prepare("hot", *_SERVING),
    "prepare-abort": _prepare("hot", "old version", decision="abort"),
    "prepare-in_place": _prepare("update", *_SERVING, "CLEARED"),
    # taken back, it gives its memory back; the group repairs a rank where that failed
    "prepare-in_place-abort": _prepare("update", "old version", "CLEARED", *_UNREPAIRED, decision="abort"),
    "prepare-hold": _prepare("hot", "old version", "held", after="held"),
    "prepare-held": _prepare("hot", "held", begin=Begin.HELD),
    "prepare-serve": _prepare("hot", "held", "new version", begin=Begin.HELD, after="serve"),
    "lease-commit": _prepare("hot", *_SERVING, leased=True),
    "lease-abort": _prepare("hot", "old version", decision="abort", leased=True),
    "lease-in_place": _prepare("update", *_SERVING, "CLEARED", leased=True),
}

OPERATIONS: dict[str, Operation] = {**COMMANDS, **HALVES, **POLICIES, **HOLDS, **PREPARES}


def operation_of(name: str) -> Operation:
    """Return the operation of a case; boots and families of damage end in an update of a serving group."""
    return OPERATIONS.get(name, Operation("update", Begin.SERVING))


def holds_half(status: GroupStatus) -> bool:
    """Whether all ranks hold the weights and no KV cache, or the other way round."""
    return status.engine_state is WeightState.CLEARED and len(status.missing) == 1


def outcome_of(status: GroupStatus, before: int | None, version: int | None) -> str:
    """Name where a group is, in the words of the endings.

    Parameters
    ----------
    status : GroupStatus
        What it says.
    before, version : int or None
        What it held before the operation, and what that should have brought.
    """
    if status.hold is not None:
        return "held, without memory" if status.missing else "held"
    if status.serving:
        return {str(before): "old version", str(version): "new version"}.get(
            str(status.version), "another version"
        )
    if holds_half(status):
        (held,) = set(Tag) - status.missing
        return _ALONE[held]
    return status.state
