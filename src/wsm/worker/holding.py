"""What one rank holds between commands: the facts of its weights, and whose blocks its KV cache has kept.

A command about one half reports the other half's facts from here. Knows no words; which half is held, the
machines say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
        ``version``, ``manifest_digest``, ``manifest_scope`` and ``digest`` of the weights that are held;
        ``bases`` and ``restorable`` where they are a part that was put on others.
    kept_digest : str or None
        Digest of the weights that computed the blocks in a KV cache that outlived them.
    """

    def __init__(self, *, compares_blocks: bool = True) -> None:
        self.weights: Mapping[str, Any] = {}
        self.kept_digest: str | None = None
        self._compares_blocks = compares_blocks
        self._absent: Mapping[int, frozenset[str]] = {}  # what each part that is held did not bring

    @property
    def version(self) -> int | None:
        """The version that is held; None while there are no weights."""
        version: int | None = self.weights.get("version")
        return version

    @property
    def bases(self) -> tuple[int, ...]:
        """The versions that the held one was put on; empty if it is a whole one."""
        bases: tuple[int, ...] = self.weights.get("bases", ())
        return bases

    def bases_of_part(self, version: int | None, absent: Collection[str] | None) -> tuple[int, ...]:
        """Return what would have to be loaded before the part `version`, for it to be what it is here.

        Parameters
        ----------
        version : int or None
            The part, which is put on what is held.
        absent : collection of str or None
            The tensors that it did not bring; None: not known, and every part before it is needed.

        Returns
        -------
        tuple of int
            The whole version, then the parts on it that brought a tensor which none has brought since.
        """
        if self.version is None:
            return ()
        whole, *parts = (*self.bases, self.version)
        needed: list[int] = []
        since = None if absent is None else frozenset(absent)  # tensors that no part has brought since
        for part in reversed(parts):
            own = self._absent.get(part)
            if part != version and (own is None or since is None or since - own):
                needed.append(part)
            if own is not None:
                since = own if since is None else since & own
        return (whole, *reversed(needed))

    def committed(self, report: RankReport) -> None:
        """Take in what a commit has brought."""
        held = (*report.bases, report.version)
        self._absent = {part: names for part, names in self._absent.items() if part in held}
        if report.version is not None and report.facts.get("partial") and "not_loaded" in report.facts:
            self._absent = {**self._absent, report.version: frozenset(report.facts["not_loaded"])}
        self.weights = {
            "version": report.version,
            "manifest_digest": report.manifest_digest,
            "manifest_scope": report.facts.get("manifest_scope"),
            "digest": report.digest,
            **({"bases": report.bases, "restorable": report.facts.get("restorable")} if report.bases else {}),
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
