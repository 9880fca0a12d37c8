"""What a group has committed, in full: the record that the committed word names, and what a rank said of it.

A word has no room for a version's name, and the slots of a command are written over by the next one. So what
outlives its command stands in a record: two slots that alternate. A new record is written into the slot that
the present word does not need, and then the word that names it; a controller that dies in between leaves the
old word with the old record whole. What a record says of the same commit later (a lease is renewed) is a
revision.

:func:`committed_record` is the one place that says which version a group has committed.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from wsm.errors import BadInputError
from wsm.labels import recorded_version, version_id
from wsm.report import RankReport
from wsm.signals.layout import Layout
from wsm.signals.segment import Segment
from wsm.signals.slot import PayloadSlot
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


@dataclass(frozen=True)
class CommittedRecord:
    """What a group has committed, and what goes with it until the next commit.

    Parameters
    ----------
    sequence : int
        The command that committed it, as the committed word names it.
    version : str or None
        The version's label; None: there is none that the group is to serve.
    digest : str or None
        Digest of its manifest, if that speaks for the whole group.
    load_sequence : int
        The command that loaded that version: under it the ranks reported what they loaded.
    load : mapping
        What that command said of how it is loaded (:meth:`wsm.command.CommandArguments.load_options`).
    hold : mapping or None
        The hold that the group stands under; None: it stands under none.
    revision : int
        1, and one more for each record that was written for the same word since.
    """

    sequence: int
    version: str | None = None
    digest: str | None = None
    load_sequence: int = 0
    hold: Mapping[str, Any] | None = None
    revision: int = 1
    load: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def word(self) -> CommittedWord:
        """The committed word that names this record."""
        named = None if self.version is None else version_id(self.version)
        return CommittedWord(self.sequence, named, self.hold is not None)

    def to_bytes(self) -> bytes:
        """Return the JSON text that goes into the slot; number and revision are its key."""
        content = {
            "version": self.version,
            "digest": self.digest,
            "load_sequence": self.load_sequence,
            "load": dict(self.load),
            "hold": None if self.hold is None else dict(self.hold),
        }
        return json.dumps(content).encode()  # ASCII: what a command can carry, a record can

    @classmethod
    @functools.lru_cache(maxsize=64)
    def from_bytes(cls, sequence: int, revision: int, data: bytes) -> CommittedRecord:
        """Read it back; the same bytes are read at each look, and once only turned into a record.

        Raises
        ------
        ValueError
            If the text is no such JSON object.
        """
        try:
            content = json.loads(data)
            version, digest, hold = content["version"], content["digest"], content["hold"]
            load_sequence, load = content["load_sequence"], content["load"]
            label = None if version is None else recorded_version(version)
        except (KeyError, TypeError, RecursionError, BadInputError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        texts = label == version and (digest is None or isinstance(digest, str))
        mappings = isinstance(load, dict) and isinstance(hold, dict | None)
        if not (texts and mappings and type(load_sequence) is int):
            raise ValueError(f"{content}")
        return cls(sequence, version, digest, load_sequence, hold, revision, load)


#: What is known of a group that has committed nothing.
NOTHING_COMMITTED = CommittedRecord(0, revision=0)


class RecordSource(Protocol):
    """Where records stand: a :class:`wsm.signals.segment.Segment`, or a copy of one."""

    words: memoryview[int]

    @property
    def layout(self) -> Layout:
        """Indexes into `words`."""

    @property
    def records(self) -> tuple[PayloadSlot, ...]:
        """The two slots."""


def committed_record(source: RecordSource) -> CommittedRecord:
    """Return what the group has committed, as its committed word says now.

    Raises
    ------
    CommittedRecordError
        If the word names a record that is not there.
    wsm.states.errors.WordFormatError
        If the word is damaged.
    """
    index = source.layout.committed
    word = CommittedWord.unpack(source.words[index])
    while (found := record_of(source, word)) is None:
        # Between two looks two commits may have passed, whose records took both slots.
        before, word = word, CommittedWord.unpack(source.words[index])
        if word == before:
            raise CommittedRecordError(sequence=word.sequence)
    return found


def record_of(source: RecordSource, word: CommittedWord) -> CommittedRecord | None:
    """Return the record that `word` names, its last revision; None: it is not there."""
    records = _records(source)
    place = named_by(word, records)
    if place is not None:
        return records[place]
    nothing = CommittedRecord(word.sequence, revision=0)
    return nothing if word == nothing.word else None  # that word says all of it: there is no version


def write_record(segment: Segment, epoch: int, record: CommittedRecord) -> CommittedRecord:
    """Write a record where the present committed word needs none; for the holder of the controller role.

    Returns
    -------
    CommittedRecord
        As it was written: with a revision beyond those that stand under its sequence. The word that names it
        is to be stored next, if it is not there already.
    """
    word, records = CommittedWord.unpack(segment.words[segment.layout.committed]), _records(segment)
    revision = 0
    for one in records:
        if one is not None and one.sequence == record.sequence:
            revision = max(revision, one.revision)
    written = replace(record, revision=revision + 1)
    slot = segment.records[place_to_write(word, records)]
    slot.write_over(epoch, written.sequence, written.revision, written.to_bytes())
    return written


def named_by(word: CommittedWord, records: Sequence[CommittedRecord | None]) -> int | None:
    """Return the place of the record that a word names, its last revision; None: it is not there."""
    found: tuple[int, int] | None = None
    for place, record in enumerate(records):
        if record is not None and record.word == word:
            found = max(found or (0, 0), (record.revision, place))
    return None if found is None else found[1]


def place_to_write(word: CommittedWord, records: Sequence[CommittedRecord | None]) -> int:
    """Return the place where the next record may be written, while `word` is the committed word."""
    needed = named_by(word, records)
    return 0 if needed is None else (needed + 1) % len(records)


def _records(source: RecordSource) -> list[CommittedRecord | None]:
    """Read what stands in the slots; None where that is nothing, or none that this build reads."""
    found: list[CommittedRecord | None] = []
    for slot in source.records:
        last, record = slot.last(), None
        if last is not None:
            (_, sequence, revision), data = last
            with contextlib.suppress(ValueError):
                record = CommittedRecord.from_bytes(sequence, revision, data)
        found.append(record)
    return found


# -- what a rank reported of it --------------------------------------------------------------------


def commit_report(segment: Segment, participant: int, sequence: int) -> RankReport | None:
    """Return what `participant` reported of the load with this sequence, in whatever epoch.

    Sequences go on over epochs, so each names one load. Before a commit is decided every rank has reported
    what it prepared; so one of the two reports is there until the next load.

    Returns
    -------
    RankReport or None
        None if there was no such load, or for the moment in which the rank writes it down.

    Raises
    ------
    wsm.report.ReportFormatError
        If another build of wsm wrote it.
    """
    for slot, code in (
        (segment.last_commit(participant), StatusCode.DONE_COMMITTED),
        (segment.report(participant), StatusCode.PREPARED),
    ):
        last = slot.last()
        if last is not None and last[0][1:] == (sequence, code):
            return RankReport.from_bytes(participant, last[1])
    return None


def keep_commit(segment: Segment, participant: int) -> None:
    """Before `participant` takes up new work: keep what its predecessor prepared for the load that stands.

    That process died before it could report the commit, and the next command would write over what it had
    prepared.
    """
    try:
        sequence = committed_record(segment).load_sequence
    except CommittedRecordError:
        return  # which load that is, is not known
    kept = segment.last_commit(participant)
    prepared, last = segment.report(participant).last(), kept.last()
    is_kept = last is not None and last[0][1] == sequence
    if prepared is not None and prepared[0][1:] == (sequence, StatusCode.PREPARED) and not is_kept:
        kept.write_over(prepared[0][0], sequence, StatusCode.DONE_COMMITTED, prepared[1])
