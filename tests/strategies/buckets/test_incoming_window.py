"""The window that a stream comes through: bytes in order over its end and begin, and marks that cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.raising import raising
from wsm.strategies import errors
from wsm.strategies.buckets._bucket_plan import SEGMENT_PREFIX, Marks, segment_bytes, window_at
from wsm.strategies.buckets._incoming_window import IncomingWindow
from wsm.strategies.errors import UnreadableFileError
from wsm.strategies.ipc import shared_segment
from wsm.strategies.ipc.shared_segment import MEMORY_DIRECTORY, OwnedSegment

WINDOW = 128
END = 1000
SESSION = 5


@pytest.fixture
def segment():
    made = OwnedSegment(SEGMENT_PREFIX, segment_bytes(WINDOW))
    Marks(made, SESSION).offer(0)
    yield made
    made.close()


@pytest.fixture
def window(segment):
    with closing(IncomingWindow(segment.name, WINDOW, END, SESSION, referrer="a test")) as made:
        yield made


def write(segment, begin, data):
    for place, byte in enumerate(data, begin):
        segment.memory[window_at(place, WINDOW)[0]] = byte


def nobody_waits(place):
    raise AssertionError(f"it waits for byte {place}")


def test_bytes_are_read_over_the_end_of_the_window(segment, window):
    content = bytes(range(200))
    marks = Marks(segment, SESSION)
    write(segment, 0, content[:100])
    marks.set_written(100)
    window.look(touched=False)
    first = bytearray(100)
    window.read(0, memoryview(first), nobody_waits)
    window.tell()
    assert marks.taken() == 100
    write(segment, 100, content[100:])
    marks.set_written(200)
    window.look(touched=False)
    second = bytearray(100)
    window.read(100, memoryview(second), nobody_waits)
    assert first + second == content


def test_what_is_not_written_yet_is_waited_for_piece_by_piece(segment, window):
    content = bytes(range(250)) * 4
    waited = []

    def written(place):
        write(segment, place - place % WINDOW, content[place - place % WINDOW : place])
        waited.append(place)
        Marks(segment, SESSION).set_written(place)
        window.look(touched=True)

    data = bytearray(300)
    window.read(0, memoryview(data), written)
    assert waited == [64, 128, 192, 256, 300]
    assert data[256:] == content[256:300]


@pytest.mark.parametrize("place", [END + 1, WINDOW + 1, 1 << 63])
def test_a_trainer_that_wrote_more_than_there_is_room_for_is_refused(segment, window, place):
    Marks(segment, SESSION).set_written(place)
    with pytest.raises(ValueError, match=f"written {place} bytes, after 0, of 128 at most"):
        window.look(touched=False)


def test_a_trainer_that_goes_back_is_refused(segment, window):
    marks = Marks(segment, SESSION)
    marks.set_written(64)
    assert window.look(touched=False) == 64
    marks.set_written(63)
    with pytest.raises(ValueError, match="after 64"):
        window.look(touched=False)


def test_no_mark_and_that_of_another_stream_are_no_news(segment, window):
    assert window.look(touched=False) == 0
    Marks(segment, SESSION + 1).set_written(64)
    assert window.look(touched=False) == 0


@pytest.mark.parametrize("touched", [False, True])
def test_memory_that_was_cut_short_is_an_error_before_it_is_read(segment, window, touched):
    os.truncate(f"{MEMORY_DIRECTORY}/{segment.name}", 0)
    with raising(errors.bad_file_size, match="truncated") as caught:
        window.look(touched=touched)
    assert caught.value.touched is touched


def test_memory_that_cannot_be_mapped_is_not_held(segment, monkeypatch):
    def no_room(*_, **__):
        raise OSError("no room today")

    monkeypatch.setattr(shared_segment, "_LeasedMapping", no_room)
    with pytest.raises(UnreadableFileError, match="no room today"):
        IncomingWindow(segment.name, WINDOW, END, SESSION, referrer="a test")
    assert not segment.leased()


def test_a_window_that_is_closed_twice_is_let_go_once(segment, window):
    assert segment.leased()
    for _ in range(2):
        window.close()
    assert not segment.leased()


def test_a_mark_is_never_seen_half_written(segment):
    places = (0, (1 << 63) - 1)
    done = threading.Event()

    def flip():
        marks = Marks(segment, SESSION)
        while not done.is_set():
            for place in places:
                marks.set_written(place)

    writer = threading.Thread(target=flip)
    writer.start()
    try:
        marks = Marks(segment, SESSION)
        seen = {marks.written() for _ in range(20_000)}
    finally:
        done.set()
        writer.join()
    assert seen <= {None, *places}


_DYING = """
import os, signal
from wsm.strategies.buckets._bucket_plan import Marks
from wsm.strategies.buckets._bucket_plan import SEGMENT_PREFIX, segment_bytes
from wsm.strategies.ipc.shared_segment import OwnedSegment
segment = OwnedSegment(SEGMENT_PREFIX, segment_bytes(128))
Marks(segment, 5).offer(0)
print(segment.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.processes
def test_the_name_that_a_dead_trainer_left_goes_with_its_stream():
    done = subprocess.run([sys.executable, "-c", _DYING], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    name = done.stdout.strip()
    window = IncomingWindow(name, WINDOW, END, SESSION, referrer="a test")
    assert not window.owned()
    window.close()
    assert not (Path(MEMORY_DIRECTORY) / name).exists()
