from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raising
from wsm.signals import layout
from wsm.signals._memory import publish
from wsm.signals.errors import SlotReusedError
from wsm.signals.layout import SLOT_BYTES, SLOT_CAPACITY, PayloadSlot
from wsm.signals.segment import Segment

u32 = st.integers(0, 2**32 - 1)
epochs = st.integers(1, 2**32 - 1)  # epoch 0 is never written: its words are those of fresh memory


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slots")
    memory = publish(folder / "file", folder / "file.new", 3 * SLOT_BYTES, b"")
    yield memory
    memory.close()


@given(epochs, u32, u32, st.binary(max_size=300))
def test_what_was_written_for_a_key_is_read_for_that_key_only(memory, epoch, sequence, kind, data):
    memory.bytes[:] = bytes(memory.size)
    slot = PayloadSlot(memory, SLOT_BYTES)
    assert slot.read(epoch, sequence, kind) is None
    PayloadSlot(memory, SLOT_BYTES).write(epoch, sequence, kind, data)
    assert slot.read(epoch, sequence, kind) == data
    for other in ((epoch ^ 1, sequence, kind), (epoch, sequence ^ 1, kind), (epoch, sequence, kind ^ 1)):
        assert slot.read(*other) is None
    assert not any(memory.bytes[:SLOT_BYTES])
    assert not any(memory.bytes[2 * SLOT_BYTES :])


@given(st.binary(max_size=100), st.data())
def test_a_payload_of_which_any_bit_is_wrong_is_not_there(memory, payload, data):
    slot = PayloadSlot(memory, 0)
    memory.bytes[:] = bytes(memory.size)
    slot.write(1, 2, 3, payload)
    # All that counts: 20 bytes of head, and the payload behind 24.
    places = [*range(20), *range(24, 24 + len(payload))]
    place, bit = data.draw(st.sampled_from(places)), data.draw(st.integers(0, 7))
    memory.bytes[place] ^= 1 << bit
    assert slot.read(1, 2, 3) is None


def test_what_a_dead_writer_left_unannounced_is_written_over(memory):
    memory.bytes[:] = bytes(memory.size)
    PayloadSlot(memory, 0).write(1, 2, 3, b"of the dead")
    slot = PayloadSlot(memory, 0)
    with pytest.raises(SlotReusedError):
        slot.write(1, 2, 3, b"mine")
    slot.write_over(1, 2, 3, b"mine")
    assert slot.read(1, 2, 3) == b"mine"


def test_a_length_beyond_the_slot_is_never_followed(memory):
    """Not even if the checksum over its neighbour's bytes fits."""
    memory.bytes[:] = bytes(memory.size)
    too_much = bytes(SLOT_CAPACITY + 8)
    head = (layout._checksum(9, 9, 9, too_much), len(too_much), 9, 9, 9)
    layout._HEAD.pack_into(memory.bytes, 0, *head)
    assert PayloadSlot(memory, 0).read(9, 9, 9) is None


def test_a_slot_takes_what_fits_and_refuses_more(segment):
    slot = segment.errors[2]
    with raising("payload-too-large") as caught:
        slot.write(1, 1, 1, bytes(SLOT_CAPACITY + 1))
    assert caught.value.capacity == SLOT_CAPACITY
    assert slot.read(1, 1, 1) is None
    slot.write(1, 1, 1, b"\xff" * SLOT_CAPACITY)
    assert slot.read(1, 1, 1) == b"\xff" * SLOT_CAPACITY


def test_a_key_is_written_once(segment):
    slot = segment.reports[0]
    slot.write(1, 1, 1, b"first")
    with pytest.raises(SlotReusedError) as caught:
        slot.write(1, 1, 1, b"second")
    assert (caught.value.epoch, caught.value.sequence, caught.value.kind) == (1, 1, 1)
    assert slot.read(1, 1, 1) == b"first"
    slot.write(1, 1, 2, b"another kind")
    with pytest.raises(SlotReusedError):
        slot.write(1, 1, 1, b"the kind that was overwritten")
    slot.write(1, 2, 1, b"the next sequence")
    assert slot.read(1, 1, 2) is None
    assert segment.reports[0] is slot


def test_a_successor_does_not_write_what_its_predecessor_wrote(segment, name):
    segment.arguments(3).write(1, 3, 1, b"first")
    with Segment.attach(name) as other, pytest.raises(SlotReusedError):
        other.arguments(3).write(1, 3, 1, b"second")


def test_arguments_of_consecutive_commands_do_not_overwrite_each_other(segment):
    for sequence in range(1, 5):
        segment.arguments(sequence).write(1, sequence, 1, b"%d" % sequence)
        if sequence > 1:
            assert segment.arguments(sequence - 1).read(1, sequence - 1, 1) == b"%d" % (sequence - 1)
    assert segment.arguments(2).read(1, 2, 1) is None


@pytest.mark.processes
def test_a_reader_never_sees_a_mixture_even_if_the_writer_is_killed_in_the_middle(segment, name, launch):
    writer = launch(
        """
        segment = Segment.attach(sys.argv[1])
        slot = segment.reports[0]
        say("begins")
        for sequence in range(1, 2**31):
            slot.write(1, sequence, 1, bytes([sequence % 251]) * 16000)
            segment.words[segment.layout.status[0]] = sequence
        """,
        name,
    )
    writer.says()
    slot, word = segment.reports[0], segment.layout.status[0]

    def read_one():
        sequence = segment.words[word]
        data = slot.read(1, sequence, 1)
        assert data is None or data == bytes([sequence % 251]) * 16000
        return data

    whole = 0
    while whole < 2000:
        whole += read_one() is not None
    writer.kill()
    read_one()


@dataclass
class PlainMemory:
    """Bytes of a segment that no process shares."""

    bytes: memoryview


def test_a_head_that_is_torn_between_two_keys_gives_nobodys_payload():
    older, newer = bytearray(SLOT_BYTES), bytearray(SLOT_BYTES)
    PayloadSlot(PlainMemory(memoryview(older)), 0).write(1, 2, 3, b"older")
    PayloadSlot(PlainMemory(memoryview(newer)), 0).write(4, 5, 6, b"newer")
    for torn in range(1, 20):  # the head's bytes arrive in any part; the payload behind them is there
        content = newer[:torn] + older[torn:24] + newer[24:]
        found = PayloadSlot(PlainMemory(memoryview(content)), 0).last()
        assert found in (None, ((4, 5, 6), b"newer"))
