"""What a group has committed, in full: the record that the committed word names, and what a rank said of it.

A word has no room for a version's name, and the next command writes over the slots of a command. So what
outlives its command stands in a record: two slots that alternate. A new record is written into the slot that
the present word does not need, and then the word that names it; a controller that dies in between leaves the
old word with the old record whole. A renewed lease is a revision of the record.

:func:`committed_record` is the one place that says which version a group has committed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from wsm.command import LABEL_MEANT, WITHOUT_WEIGHTS, RankReport
from wsm.errors import BadInputError
from wsm.labels import Label, version_id
from wsm.payload import PayloadError, decode, encode
from wsm.signals.layout import SLOT_CAPACITY
from wsm.signals.segment import GroupMemory, Segment
from wsm.states.holding import Hold
from wsm.states.words import CommittedWord, StatusCode


class CommittedRecordError(BadInputError):
    """The record of what the group has committed is not there, or damaged."""

    def __init__(self, *, sequence: int) -> None:
        super().__init__(
            f"the record of what the group committed with command {sequence} is missing or damaged, "
            "so no process knows the version; "
            "load a version, with 'wsm update --version ...', which writes the record anew",
            sequence=sequence,
        )


class CommittedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a group has committed, and what goes with it until the next commit.

    Parameters
    ----------
    sequence, load_sequence : int
        The command that committed it, as the committed word names it; and the command that loaded the
        version, under which the ranks reported what they loaded.
    version : str or None
        The version's label; None: there is none that the group is to serve.
    digest : str or None
        Digest of its manifest, if that speaks for the whole group.
    load : mapping
        How that command loaded it (:meth:`wsm.command.CommandArguments.load_options`).
    revision : int
        1, and one more for each record that was written for the same word since.
    tensor_set : str or None
        Which tensors the last whole version brought to models that say nothing beforehand
        (:mod:`wsm.strategies.applier.tensor_set`); it stays over clears. None: none did, ranks
        were brought different ones, or there was no room for it.
    content_digest : str or None
        Of what the label means now (:func:`content_digest`); None: it has meant one content only.
    """

    sequence: int
    version: Label | None = None
    digest: str | None = None
    load_sequence: int = 0
    hold: Hold | None = None
    revision: int = 1
    load: Mapping[str, Any] = {}
    tensor_set: str | None = None
    content_digest: str | None = None

    @property
    def word(self) -> CommittedWord:
        """The committed word that names this record."""
        version = None if self.version is None else version_id(self.version)
        return CommittedWord(self.sequence, version, self.hold is not None)

    def to_bytes(self) -> bytes:
        """Return the JSON text that goes into the slot; number and revision are its key, too."""
        data = encode(self)
        # What a command can carry, a record can, if not always with the set beside it.
        return data if len(data) <= SLOT_CAPACITY else encode(structs.replace(self, tensor_set=None))

    @classmethod
    @functools.lru_cache(maxsize=64)
    def from_bytes(cls, sequence: int, revision: int, data: bytes) -> CommittedRecord:
        """Read it back; the same bytes are read at each look, and once only turned into a record."""
        found = decode(cls, data)
        if (found.sequence, found.revision) != (sequence, revision):
            raise PayloadError(f"it is revision {found.revision} of record {found.sequence}")
        return found


#: What is known of a group that has committed nothing.
NOTHING_COMMITTED = CommittedRecord(0, revision=0)


def committed_record(source: GroupMemory) -> CommittedRecord:
    """Return what the group has committed, as its committed word says now.

    Raises
    ------
    CommittedRecordError, wsm.states.errors.WordFormatError
        If the word names a record that is not there, or is damaged.
    """
    index = source.layout.committed
    word = CommittedWord.unpack(source.words[index])
    while (found := record_of(source, word)) is None:
        # Between two looks two commits may have passed, whose records took both slots.
        before, word = word, CommittedWord.unpack(source.words[index])
        if word == before:
            raise CommittedRecordError(sequence=word.sequence)
    return found


def record_of(source: GroupMemory, word: CommittedWord) -> CommittedRecord | None:
    """Return the record that `word` names, its last revision; None: it is not there."""
    records = _records(source)
    place = named_by(word, records)
    if place is not None:
        return records[place]
    nothing = CommittedRecord(word.sequence, revision=0)
    return nothing if word == nothing.word else None  # that word says all of it: there is no version


def write_record(segment: Segment, epoch: int, record: CommittedRecord) -> CommittedRecord:
    """Write a record where the present committed word needs none; for the holder of the controller role.

    Returned with its revision. The word that names it is to be stored next, if it is not there already.
    """
    word, records = CommittedWord.unpack(segment.words[segment.layout.committed]), _records(segment)
    revision = 0
    for one in records:
        if one is not None and one.sequence == record.sequence:
            revision = max(revision, one.revision)
    written = structs.replace(record, revision=revision + 1)
    slot = segment.records[place_to_write(word, records)]
    slot.write_over(epoch, written.sequence, written.revision, written.to_bytes())
    return written


def named_by(word: CommittedWord, records: Sequence[CommittedRecord | None]) -> int | None:
    """Return the place of the record that a word names, its last revision; None: it is not there."""
    named = [(one.revision, at) for at, one in enumerate(records) if one is not None and one.word == word]
    return max(named)[1] if named else None


def place_to_write(word: CommittedWord, records: Sequence[CommittedRecord | None]) -> int:
    """Return the place where the next record may be written, while `word` is the committed word."""
    needed = named_by(word, records)
    return 0 if needed is None else (needed + 1) % len(records)


def _records(source: GroupMemory) -> list[CommittedRecord | None]:
    found: list[CommittedRecord | None] = []
    for slot in source.records:
        last, record = slot.last(), None
        if last is not None:
            (_, sequence, revision), data = last
            with contextlib.suppress(PayloadError):
                record = CommittedRecord.from_bytes(sequence, revision, data)
        found.append(record)
    return found


def content_digest(reports: Sequence[RankReport], version: str | None, before: CommittedRecord) -> str | None:
    """Return the digest of what a group has loaded, where its label has meant other content before.

    That is the manifest's, if one speaks for the group, else one of all ranks' digests. `before` is what was
    committed before the load, or the load's own record.
    """
    loaded = [report for report in reports if not report.facts.get(WITHOUT_WEIGHTS)]
    other = any(report.facts.get(LABEL_MEANT, report.digest) != report.digest for report in loaded)
    if not (other or (before.version == version and before.content_digest is not None)):
        return None
    manifests = {
        report.manifest_digest if report.facts.get("manifest_scope") == "group" else None for report in loaded
    }
    (manifest, *more) = manifests or {None}
    if manifest is not None and not more:
        return manifest
    told = "\n".join(f"{report.rank} {report.digest}" for report in loaded)
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


# -- what a rank reported of it --------------------------------------------------------------------


def commit_report(segment: Segment, participant: int, sequence: int) -> RankReport | None:
    """Return what `participant` reported of the load with this sequence, in whatever epoch.

    Before a commit is decided every rank has reported what it prepared; so one of the two reports is there
    until the next load. None: there was no such load, or the rank is just writing it down. ReportFormatError:
    another build of wsm wrote it.
    """
    for slot, code in (
        (segment.last_commits[participant], StatusCode.DONE_COMMITTED),
        (segment.reports[participant], StatusCode.PREPARED),
    ):
        last = slot.last()
        if last is not None and last[0][1:] == (sequence, code):
            return RankReport.from_bytes(participant, last[1])
    return None


def keep_commit(segment: Segment, participant: int) -> None:
    """Before `participant` takes up new work: keep what its predecessor prepared for the load that stands.

    That process died before it could report the commit, and the next command would write over its report.
    """
    try:
        sequence = committed_record(segment).load_sequence
    except CommittedRecordError:
        return  # which load that is, is not known
    kept = segment.last_commits[participant]
    prepared, last = segment.reports[participant].last(), kept.last()
    is_kept = last is not None and last[0][1] == sequence
    if prepared is not None and prepared[0][1:] == (sequence, StatusCode.PREPARED) and not is_kept:
        kept.write_over(prepared[0][0], sequence, StatusCode.DONE_COMMITTED, prepared[1])
