"""What is said of a held group: who holds it, what is left of the lease, and what ends it. Pure."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from wsm.states.vocabulary import OnLease
from wsm.status.facts import GroupFacts


class HoldInWords(NamedTuple):
    """What there is to say of a hold.

    Parameters
    ----------
    state : str
        What the group has and who holds it, as the end of a sentence about it.
    because : str
        What is known of the lease; empty: it has none.
    advice, command : str
        What lets it serve again; empty where the group lacks something, which an update brings first.
    """

    state: str
    because: str
    advice: str = ""
    command: str = ""


def hold_in_words(group: GroupFacts) -> HoldInWords | None:
    """Say who holds the group; None: it is open, or something else is to be said of it first."""
    held = {(rank.weights, rank.kv) for rank in group.ranks if not rank.helper}
    if group.hold is None or any(weights == "FAULTED" for weights, _ in held) or len(held) != 1:
        return None
    owner = str(group.hold.get("owner", "a caller without a name"))
    if held != {("NORMAL", "NORMAL")}:
        return HoldInWords(f"is held by {owner}, and lacks what a step needs", _lease(group, owner))
    command = f"wsm release {group.name} --owner {shlex.quote(owner)}"
    state = f"has version {group.committed.version}, and is held by {owner}"
    return HoldInWords(state, _lease(group, owner), f"'{command}' lets it serve again.", command)


def _lease(group: GroupFacts, owner: str) -> str:
    left_s = group.lease_left_s
    if left_s is None or group.hold is None:
        return ""
    if left_s > 0:
        return f"its lease lasts {left_s:.0f} s more"
    stays = group.hold.get("on_lease") == OnLease.STAY.value
    then = "it stays held" if stays else "what is whole serves again"
    return f"the lease of {owner} ran out {-left_s:.0f} s ago; {then}"
