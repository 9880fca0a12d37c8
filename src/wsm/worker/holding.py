"""What one rank holds between commands: the facts of its weights, and whose blocks its KV cache has kept.

A command about one half reports the other half's facts from here. Knows no words; which half is held, the
machines say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wsm.report import RankReport
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import KVState, WeightState


class Holding:
    """The facts of one rank.

    Parameters
    ----------
    compares_blocks : bool
        Whether blocks that a clear of the weights has kept stay where the very same weights come back. Not
        in a group with a KV-cache process, which sees no weights and would forget what the ranks keep.

    Attributes
    ----------
    weights : mapping
        ``version``, ``manifest_digest``, ``manifest_scope`` and ``digest`` of the weights that are held.
    kept_digest : str or None
        Digest of the weights that computed the blocks in a KV cache that outlived them.
    """

    def __init__(self, *, compares_blocks: bool = True) -> None:
        self.weights: Mapping[str, Any] = {}
        self.kept_digest: str | None = None
        self._compares_blocks = compares_blocks

    @property
    def version(self) -> int | None:
        """The version that is held; None while there are no weights."""
        version: int | None = self.weights.get("version")
        return version

    def committed(self, report: RankReport) -> None:
        """Take in what a commit has brought."""
        self.weights = {
            "version": report.version,
            "manifest_digest": report.manifest_digest,
            "manifest_scope": report.facts.get("manifest_scope"),
            "digest": report.digest,
        }
        if report.version is not None:
            self.kept_digest = None  # what is in the cache now is these weights' own, or was kept for them

    def settled(self, life: LifeCycle, *, blocks_kept: bool = False) -> None:
        """Take in what the end of any other command has left.

        Parameters
        ----------
        life : LifeCycle
            The machines, at rest.
        blocks_kept : bool
            Whether the command took the weights from a KV cache that it left as it was.
        """
        if blocks_kept and self._compares_blocks and life.kv is KVState.NORMAL:
            self.kept_digest = self.weights.get("digest")
        if life.kv is not KVState.NORMAL:
            self.kept_digest = None
        if life.weights is not WeightState.NORMAL:
            self.weights = {}
