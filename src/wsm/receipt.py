"""The receipt: the proof that a command happened, and what it did. Plain data, JSON in and out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wsm.report import RankReport


class Outcome(enum.Enum):
    """How a command that did not fail ended."""

    CLEARED = "cleared"
    UPDATED = "updated"
    ALREADY_SERVED = "already served"
    ALREADY_CLEARED = "already cleared"


@dataclass(frozen=True)
class Receipt:
    """What a command did, on every rank.

    Parameters
    ----------
    request_id : str
        The caller's name for the request.
    outcome : Outcome
        How it ended. ``ALREADY_SERVED``: the version was served before and nothing was loaded.
    epoch, sequence : int
        The command's identity; for ``ALREADY_SERVED`` that of the command which loaded the version.
    version, previous_version : int or None
        The committed version after and before.
    manifest_digest : str or None
        Digest of what the version consists of, equal on all ranks.
    loaded : bool
        Whether any byte of weights was loaded by this command.
    seconds : float
        From the command word to the last rank's terminal word.
    pause_s : float
        The longest time that a rank could not serve, up to now.
    ranks : tuple of RankReport
        Per rank: digest of the resident bytes, bytes, seconds per action.
    hot : bool
        Whether the version was staged while the one before served, and the group stopped only to flip.
    staging_s : float
        Seconds that this took until the decision, all of them served; 0 if it was not hot.
    fallback : str or None
        Why an update that was asked for hot was done in place; None if it was done as asked.
    """

    request_id: str
    outcome: Outcome
    epoch: int
    sequence: int
    version: int | None
    previous_version: int | None
    manifest_digest: str | None
    loaded: bool
    seconds: float
    pause_s: float
    ranks: tuple[RankReport, ...]
    hot: bool = False
    staging_s: float = 0.0
    fallback: str | None = None

    def to_mapping(self) -> Mapping[str, Any]:
        """Return plain values, ready for JSON."""
        return {**asdict(self), "outcome": self.outcome.value}

    def sentence(self) -> str:
        """Say in one line what happened."""
        what = {
            Outcome.CLEARED: "cleared",
            Outcome.UPDATED: f"serves version {self.version}",
            Outcome.ALREADY_SERVED: f"already serves version {self.version}; nothing was loaded",
            Outcome.ALREADY_CLEARED: "was cleared already; nothing was done",
        }[self.outcome]
        loaded = sum(report.bytes for report in self.ranks)
        amount = f", {loaded / 2**20:.1f} MiB on {len(self.ranks)} ranks" if self.loaded else ""
        staged = f", staged for {self.staging_s * 1e3:.1f} ms while serving" if self.hot else ""
        took = f"{self.seconds * 1e3:.1f} ms"
        return f"{what} (epoch {self.epoch}, sequence {self.sequence}{amount}, {took}{staged})"
