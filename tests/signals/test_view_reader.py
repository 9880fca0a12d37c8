"""A view says what stands in the words now, however often it was read before."""

from __future__ import annotations

from wsm.signals.waiting import ViewReader
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord, StepKind, StepWord


def test_every_word_is_read_anew_and_only_what_changed_is_another_object(segment):
    reader, layout, words = ViewReader(segment), segment.layout, segment.words
    first = reader.read()
    assert reader.read() is first
    assert (len(first.view.steps), len(first.view.statuses)) == (2, 3)
    words[layout.command] = CommandWord(1, 4, Operation.UPDATE).pack()
    words[layout.step[1]] = StepWord(1, 3, StepKind.PARKED, 7).pack()
    status = StatusWord.unpack(0)._replace(epoch=1, sequence=4, code=StatusCode.PREPARED)
    words[layout.status[2]] = status.pack()
    words[layout.committed] = CommittedWord(3, 6).pack()
    found = reader.read()
    assert found.view.command == CommandWord(1, 4, Operation.UPDATE)
    assert found.view.steps[1] == StepWord(1, 3, StepKind.PARKED, 7)
    assert found.view.steps[0] is first.view.steps[0]
    assert found.view.of_command(2) == status
    assert found.view.committed.version_id == 6
    assert found.statuses == (0, 0, status.pack())
