"""What the ranks of a group hold at rest, and what they lack for serving. Pure; knows states, no words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wsm.states.joint import serving
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState, sentence_of


class Held(NamedTuple):
    """Where the weights and the KV cache of one rank are, or of all of them.

    Parameters
    ----------
    weights : WeightState
        The weights.
    kv : KVState
        The KV cache.
    """

    weights: WeightState
    kv: KVState

    def __str__(self) -> str:
        return f"{self.weights.name}, KV cache {self.kv.name}"

    @property
    def serving(self) -> bool:
        """Whether a rank that holds this may step."""
        return serving(self.weights, self.kv)

    @property
    def missing(self) -> frozenset[Tag]:
        """What is not there, or not whole."""
        there = {Tag.WEIGHTS: self.weights is WeightState.NORMAL, Tag.KV_CACHE: self.kv is KVState.NORMAL}
        return frozenset(tag for tag, holds in there.items() if not holds)

    @property
    def as_whole(self) -> WeightState:
        """What one word says of both: NORMAL if it serves, CLEARED if it does not and all is at rest.

        FastDeploy's weights word is that word: an engine sends requests while it is NORMAL, and asks for
        UPDATING while it is CLEARED. So a half must not be NORMAL there.
        """
        halves = self.missing and self.weights is WeightState.NORMAL
        return WeightState.CLEARED if halves else self.weights


def held_by_all(each: Iterable[Held]) -> Held | None:
    """Return what every rank holds; None if they differ."""
    found = set(each)
    return found.pop() if len(found) == 1 else None


def words_for(missing: frozenset[Tag], version: int | None) -> str:
    """Say what is held where something is missing, as the end of a sentence about a group."""
    if missing == ALL_TAGS:
        return "holds nothing, and does not serve"
    held = sentence_of(ALL_TAGS - missing)
    of_version = f" of version {version}" if Tag.WEIGHTS not in missing else ""
    return f"holds {held}{of_version}, and does not serve without {sentence_of(missing)}"
