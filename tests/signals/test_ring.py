"""The last lines of a writer, as they stand in the segment after it: whole, in order, bounded."""

from __future__ import annotations

import json

import pytest

from tests.segment_bytes import segment_bytes
from wsm.journal.entry import MAX_LINE_BYTES, RING_BYTES, RING_CAPACITY, LineRing
from wsm.signals.segment import Segment


@pytest.fixture
def ring(segment) -> LineRing:
    return segment.journals[1]


def test_lines_come_back_in_order_and_stay_in_their_ring(segment, ring):
    assert ring.lines() == []
    for number in range(3):
        assert ring.append(f"line {number} 失败")
    assert ring.lines() == [f"line {number} 失败" for number in range(3)]
    assert segment.journals[0].lines() == []
    assert segment.controller_journal.lines() == []


@pytest.mark.slow_but("8171")
@pytest.mark.parametrize("length", [1, 63, 64, 1000, MAX_LINE_BYTES - 20])
def test_the_last_lines_stay_whole_however_many_there_were(ring, length):
    count = 3 * RING_CAPACITY // length + 7
    for number in range(count):
        ring.append(json.dumps([number, "x" * length]))
    numbers = []
    for line in ring.lines():
        if not line.startswith("["):
            assert not numbers, "only the oldest line may be broken"
            continue
        numbers.append(json.loads(line)[0])
    assert numbers == list(range(numbers[0], count))
    assert len(numbers) >= (RING_CAPACITY - MAX_LINE_BYTES) // (length + 20)


def test_a_ring_that_is_filled_to_the_last_byte_loses_nothing(ring):
    line = "x" * (RING_CAPACITY // 128 - 1)
    for _ in range(127):
        ring.append(line)
    ring.append("y" * (RING_CAPACITY - 127 * (len(line) + 1) - 1))
    assert len(ring.lines()) == 128


def test_a_line_that_would_push_the_others_out_is_left_out(ring):
    ring.append("small")
    assert not ring.append("x" * MAX_LINE_BYTES)
    assert ring.lines() == ["small"]


def test_what_a_killed_writer_wrote_is_there_for_others(segment, name, launch):
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        segment.journals[0].append("it was me")
        say("written")
        time.sleep(60)
        """,
        name,
    )
    child.says()
    child.kill()
    with Segment.attach(name) as other:
        assert other.journals[0].lines() == ["it was me"]
        other.journals[0].append("and then I")
    assert segment.journals[0].lines() == ["it was me", "and then I"]


def test_whatever_bytes_stand_there_come_back_as_lines(segment, ring):
    begin = segment.layout.journal[1]
    with segment_bytes(segment) as found:
        found[begin + 8 : begin + 8 + RING_CAPACITY] = bytes(range(256)) * (RING_CAPACITY // 256) + bytes(
            RING_CAPACITY % 256
        )
        for written in (1, RING_CAPACITY, RING_CAPACITY + 1, 2**63, 2**64 - 1):
            found[begin : begin + 8] = written.to_bytes(8, "little")
            assert all(isinstance(line, str) for line in ring.lines())


class OvertakenMemory:
    """A ring's bytes, to which a writer appends while a reader copies them."""

    def __init__(self) -> None:
        self._content = memoryview(bytearray(RING_BYTES))
        self.looks_until_then = -1
        self.append = lambda: None

    @property
    def bytes(self) -> memoryview:
        self.looks_until_then -= 1
        if self.looks_until_then == 0:
            self.append()
        return self._content


def test_a_reader_drops_the_lines_that_were_overwritten_while_it_copied_them():
    memory = OvertakenMemory()
    ring, count = LineRing(memory, 0), 2 * RING_CAPACITY // 1000
    for number in range(count):
        ring.append(f"{number:06d} {'x' * 990}")
    memory.append = lambda: ring.append("y" * 5000)
    memory.looks_until_then = 2  # it has read how many bytes were written, and takes the content
    lines = ring.lines()
    assert not any("y" in line for line in lines)
    numbers = [int(line[:6]) for line in lines if len(line) == 997]
    assert numbers == list(range(numbers[0], count))
    assert len(lines) - len(numbers) <= 1, "only the oldest line may be broken"
