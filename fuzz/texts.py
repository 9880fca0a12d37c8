"""Texts that people and processes write (configurations, journals, slots), and ZMQ's protocol, as formats."""

from __future__ import annotations

from typing import Any

from examples.rollout.config import rollout_config_from_mapping
from fuzz.invariant import Format
from wsm.command import CommandArguments
from wsm.committed_record import CommittedRecord
from wsm.config import config_from_mapping
from wsm.config_reading import ConfigurationError, YamlReadingError, plain_values
from wsm.errors import WsmError
from wsm.journal.entry import read_ndjson, transition_entry
from wsm.states.holding import Hold
from wsm.states.machine import LifeCycle
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy, OnLease, WeightEvent


def text_formats() -> list[Format]:
    """Return them."""
    return [_configuration(), _rollout_configuration(), _journal(), _arguments(), _record()]


class _Read:
    """What a text means, with the text: a configuration is read again, never written."""

    def __init__(self, data: bytes, meaning: Any) -> None:
        self.data = data
        self._meaning = meaning

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Read) and repr(self._meaning) == repr(other._meaning)

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up


def _mapping(data: bytes) -> dict[str, Any]:
    content = plain_values(data)
    if not isinstance(content, dict):
        raise ConfigurationError(where="fuzzed", problem="is no mapping", fix="write one")
    return content


def _configuration() -> Format:
    return Format(
        name="wsm.yaml",
        reader=config_from_mapping,
        decode=lambda data: _Read(data, config_from_mapping(_mapping(data), where="fuzzed")),
        encode=lambda read: read.data,
        samples=(
            b"name: policy\nranks: 2\nsnapshot: {directory: /models/policy}\n",
            b"name: p\nranks: 4\ncommunicators: {tp: [[0, 1], [2, 3]], world: [[0, 1, 2, 3]]}\n",
            b"name: p\nranks: 1\nengine_words: {suffixes: [8001]}\ndeadlines: {drain_s: 7.5}\n",
        ),
        errors=(WsmError, YamlReadingError),
    )


def _rollout_configuration() -> Format:
    def read(data: bytes) -> Any:
        return rollout_config_from_mapping(_mapping(data), source="fuzzed", name="policy", ranks=2)

    return Format(
        name="rollout.yaml",
        reader=rollout_config_from_mapping,
        decode=lambda data: _Read(data, read(data)),
        encode=lambda read: read.data,
        samples=(b"group: {journal_directory: journals}\nload: {concurrency: 16}\nmodel: {experts: 4}\n",),
        errors=(WsmError, YamlReadingError),
    )


def _journal() -> Format:
    life = LifeCycle()
    records = [
        life.fire(event, at_ns=1, epoch=1, sequence=1) for event in (WeightEvent.UPDATE, WeightEvent.PREPARED)
    ]
    return Format(
        name="journal",
        reader=read_ndjson,
        decode=lambda data: [
            entry.to_line() for entry in read_ndjson(data.decode(errors="replace").splitlines(keepends=True))
        ],
        encode=lambda lines: "".join(f"{line}\n" for line in lines).encode(),
        samples=tuple(
            f"{transition_entry(each, rank=0, wall_ns=1).to_line()}\n".encode() for each in records
        ),
    )


_HOLD = Hold("h1", "trainer", InFlightPolicy.KEEP, KVPolicy.DROP, 2.5, OnLease.SERVE, 7)


def _arguments() -> Format:
    asked = CommandArguments("r", tags=frozenset(), after=After.HELD, hold=_HOLD, of_admission=True)

    def decode(data: bytes) -> _Read:
        read = CommandArguments.from_bytes(data)
        return _Read(read.to_bytes(), read)

    return Format(
        name="command arguments",
        reader=CommandArguments.from_bytes,
        decode=decode,
        encode=lambda read: read.data,
        samples=(asked.to_bytes(), CommandArguments("r", "step:3", deadline_s=5.0).to_bytes()),
    )


def _record() -> Format:
    """What a group has committed, and the hold that it stands under."""

    def decode(data: bytes) -> _Read:
        read = CommittedRecord.from_bytes(3, 1, data)
        hold = Hold.known(read.hold)
        if hold is not None:
            hold.left_s(10**15)
        return _Read(data, (read, hold))

    return Format(
        name="committed record",
        reader=CommittedRecord.from_bytes,
        decode=decode,
        encode=lambda read: read.data,
        samples=(CommittedRecord(3, "step:3", "00" * 16, 3, _HOLD).to_bytes(),),
        errors=(ValueError,),
    )
