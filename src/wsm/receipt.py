"""The receipt: the proof that a command happened, and what it did. Plain data, JSON in and out."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from wsm.command import ActionSeconds, RankReport
from wsm.labels import is_unnamed
from wsm.payload import PayloadError, as_mapping, convert
from wsm.printable import size_text
from wsm.states.holding import Hold
from wsm.states.vocabulary import Tag, sentence_of


def named(tags: Iterable[Tag]) -> tuple[str, ...]:
    """Return the names of tags, in one order."""
    return tuple(sorted(map(attrgetter("value"), tags)))


class Outcome(enum.Enum):
    """How a command that did not fail ended."""

    CLEARED = "cleared"
    UPDATED = "updated"
    ALREADY_SERVED = "already served"
    ALREADY_CLEARED = "already cleared"
    ALREADY_HELD = "already held"
    PREPARED = "prepared"
    ABORTED = "aborted"
    HELD = "held"
    HOLD_RENEWED = "hold renewed"
    RELEASED = "released"
    ALREADY_OPEN = "already open"


_OF_ADMISSION = {
    Outcome.HELD: "is held",
    Outcome.HOLD_RENEWED: "was held already, and is",
    Outcome.RELEASED: "is released",
    Outcome.ALREADY_OPEN: "was open already",
}


def _known(kind: type[msgspec.Struct], said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said[name] for name in kind.__struct_fields__ if name in said}


class Receipt(msgspec.Struct, frozen=True):
    """What a command did, on every rank.

    Parameters
    ----------
    outcome : Outcome
        How it ended. ``ALREADY_SERVED``: the version was served before and nothing was loaded;
        ``ALREADY_HELD``: so it was with what was asked for, and something else is missing for serving.
    epoch, sequence : int
        The command's identity; for ``ALREADY_SERVED`` that of the command which loaded the version.
    version, previous_version : str or None
        The version that is held after, and the one that was committed before.
    manifest_digest : str or None
        Digest of what the version consists of, equal on all ranks.
    loaded : bool
        Whether any byte of weights was loaded by this command.
    seconds, pause_s : float
        From the command word to the last rank's terminal word; and the longest time that a rank could not
        serve, up to now.
    ranks : tuple of RankReport
        Per rank: digest of the resident bytes, bytes, seconds per action.
    hot, staging_s : bool, float
        Whether the version was staged while the one before served, and the group stopped only to flip; and
        the seconds that this took until the decision.
    fallback : str or None
        Why an update that was asked for hot was done in place; None if it was done as asked.
    tags, missing : tuple of str
        What the command was about; and what the group lacks for serving now.
    partial : bool
        Whether tensors were allowed to be missing in the version; the fact ``not_loaded`` of each rank's
        report names those that were, and kept what they held.
    restorable : bool
        Whether a group that loses a rank now can serve this again. Not so after a partial update over weights
        that are kept nowhere (:attr:`wsm.command.RankReport.bases`), until a whole version is loaded.
    serving, hold : bool, Hold or None
        Whether the group serves behind the command: nothing is missing, and it stands under no hold.
    staged_bytes, lease_s : int, float or None
        ``PREPARED``: bytes of weights that the ranks keep for the decision, and seconds from then on after
        which that is ABORT.
    verified : bool or None
        Whether every tensor that was loaded, on every rank, matched a digest that its source had promised;
        None: nothing was loaded, or a load did not say.
    restored : bool
        Whether the version that served before was loaded again, since what was prepared was taken back.
    content_digest : str or None
        Of what was loaded, where its label has meant other content before; None: the label says which it is.
    warning : str or None
        What else is to be known of the outcome: why the version that served before is not restored.
    """

    request_id: str
    outcome: Outcome
    epoch: int
    sequence: int
    version: str | None
    previous_version: str | None
    manifest_digest: str | None
    loaded: bool
    seconds: float
    pause_s: float
    ranks: tuple[RankReport, ...]
    hot: bool = False
    staging_s: float = 0.0
    fallback: str | None = None
    tags: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    partial: bool = False
    restorable: bool = True
    serving: bool = False
    hold: Hold | None = None
    staged_bytes: int = 0
    lease_s: float | None = None
    verified: bool | None = None
    restored: bool = False
    warning: str | None = None
    content_digest: str | None = None

    def to_mapping(self) -> Mapping[str, Any]:
        """Return plain values, ready for JSON; without the ranks' ``tensor_set``, which no person reads."""
        said = as_mapping(self)
        for rank in said["ranks"]:
            rank["facts"].pop("tensor_set", None)
        return {**said, "hold": None if self.hold is None else self.hold.facts()}

    @classmethod
    def from_mapping(cls, said: Mapping[str, Any]) -> Receipt:
        """Return the receipt that :meth:`to_mapping` has described; what a newer build adds is left out."""
        try:
            ranks = [
                {
                    **_known(RankReport, rank),
                    "actions": [_known(ActionSeconds, one) for one in rank["actions"]],
                }
                for rank in said["ranks"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise PayloadError(f"{type(error).__name__}: {error}") from error
        return convert(cls, {**said, "ranks": ranks})

    def _sentence_of_a_half(self) -> str:
        asked = sentence_of(Tag(tag) for tag in self.tags)
        done = {
            Outcome.CLEARED: f"released {asked}",
            Outcome.ALREADY_CLEARED: f"had released {asked} already; nothing was done",
            Outcome.UPDATED: f"{'rebuilt' if self.tags == (Tag.KV_CACHE.value,) else 'loaded'} {asked}",
        }.get(self.outcome, f"had {asked} already; nothing was loaded")
        missing = frozenset(Tag(tag) for tag in self.missing)
        kept = "holds no weights" if Tag.KV_CACHE in missing else "holds the KV cache"
        still = "still " if self.outcome is Outcome.CLEARED else ""
        held = kept if Tag.WEIGHTS in missing else f"{still}holds version {self.version}"
        return f"{done}; {held}, and does not serve without {sentence_of(missing)}"

    def _sentence_of_admission(self, does: str) -> str:
        owner = None if self.hold is None else self.hold.owner
        lacks = sentence_of(Tag(tag) for tag in self.missing)
        has = f"has version {self.version}" if not self.missing else f"does not serve without {lacks}"
        if self.hold is not None:
            return f"{does} by {owner}, {has}"
        return f"{does}, {f'serves version {self.version}' if self.serving else has}"

    def _sentence_of_a_preparation(self) -> str:
        old = (
            "the old weights serve until the decision"
            if self.hot
            else "the old weights are gone: an abort, or an end of the lease, restores or clears the group"
        )
        lease = "" if self.lease_s is None else f" within {self.lease_s:g} s"
        if not self.tags:
            how = "held" if self.hold is None else "released"
            return f"has version {self.version} already, and stands to be {how} or left as it was{lease}"
        staged = size_text(self.staged_bytes)
        return f"prepared version {self.version}, {staged}, to be committed or aborted{lease}; {old}"

    def sentence(self) -> str:
        """Say in one line what happened."""
        still, again = ("and", " again") if self.restored else ("still", "")
        what = {
            Outcome.CLEARED: "cleared",
            Outcome.UPDATED: f"serves version {self.version}",
            Outcome.ALREADY_SERVED: f"already serves version {self.version}; nothing was loaded",
            Outcome.ALREADY_CLEARED: "was cleared already; nothing was done",
            Outcome.ABORTED: "took back what was prepared; "
            + ("holds no weights" if self.missing else f"{still} serves version {self.version}{again}"),
        }.get(self.outcome, "")
        if self.outcome is Outcome.PREPARED:
            what = self._sentence_of_a_preparation()
        elif self.outcome is Outcome.ABORTED:
            pass
        elif self.outcome in _OF_ADMISSION:
            what = self._sentence_of_admission(_OF_ADMISSION[self.outcome])
        elif len(self.missing) == 1 or self.outcome is Outcome.ALREADY_HELD:
            what = self._sentence_of_a_half()
        elif self.hold is not None:
            what = f"{what.replace('serves', 'holds')}, and is held by {self.hold.owner}"
        what += "" if self.content_digest is None else f", content {self.content_digest}"
        loaded = kept = unknown = 0
        unproven: list[int] = []
        for report in self.ranks:
            facts = report.facts
            loaded += report.bytes
            kept += int(facts.get("kept_tensors", 0))
            unknown += int(facts.get("unknown_tensors", 0))
            measured = facts.get("resident_bytes_after", 0), facts.get("dropped_bytes")
            if "resident_bytes_after" in facts and None in measured:
                unproven.append(report.rank)  # it let memory go, and could not measure that it is free
        rest = f", {kept} tensors kept as they were" if self.partial else ""
        proof = f", free memory not measured on rank {', '.join(map(str, unproven))}" if unproven else ""
        rest += f", {unknown} tensors left out that the model does not have" if unknown else ""
        if self.verified is False:
            unnamed = is_unnamed(self.version or "")
            lacks = "its source names no version" if unnamed else "not every tensor was promised by a digest"
            rest += f", unverified: {lacks}"
        if not self.restorable:
            rest += ", no lost rank can be restored until a whole version is loaded"
        amount = f", {size_text(loaded)} on {len(self.ranks)} ranks{rest}" if self.loaded else ""
        staged = f", staged for {self.staging_s * 1e3:.1f} ms while serving" if self.hot else ""
        took = f"{self.seconds * 1e3:.1f} ms"
        return f"{what} (epoch {self.epoch}, sequence {self.sequence}{amount}, {took}{staged}{proof})"
