"""What a process learns of the signals that ask it to end, and when they raise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from wsm.ending import Ending, SignalReceived, signals_raise


@pytest.fixture(autouse=True)
def handlers_are_left_as_they_were() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_only_noted_where_an_exception_would_leave_something_half_made(number: int) -> None:
    ending = Ending()
    with ending.heeded():
        assert not ending.wait(0)
        send(number)
        assert ending.wait(0)
        with pytest.raises(SignalReceived) as received:
            ending.check()
    assert ending.exit_code == received.value.exit_code == 128 + number


def test_the_first_signal_interrupts_what_may_be_interrupted_and_the_second_hastens_the_end() -> None:
    ending, killed = Ending(), []
    with ending.heeded(), ending.hastened_by(lambda: killed.append("ranks")):
        with pytest.raises(SignalReceived), ending.interrupting():
            send(signal.SIGTERM)
        assert killed == []
        send(signal.SIGHUP)  # a terminal that closes may signal twice
        assert killed == []
        send(signal.SIGINT)
        assert killed == ["ranks"]
        with ending.hastened_by(lambda: killed.append("trainer")):
            assert killed == ["ranks", "trainer"]
    assert ending.exit_code == 143


def test_a_signal_that_came_before_interrupts_at_once() -> None:
    ending = Ending()
    with ending.heeded():
        send(signal.SIGINT)
        with pytest.raises(SignalReceived), ending.interrupting():
            pytest.fail("what may be interrupted was begun")


def test_a_closed_terminal_ends_nothing_that_nohup_started() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ending = Ending()
        with ending.heeded(), signals_raise():
            send(signal.SIGHUP)
        assert ending.number is None
    finally:
        signal.signal(signal.SIGHUP, before)
