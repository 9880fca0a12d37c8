"""What a process learns of the signals that ask it to end, and when they raise."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from wsm.controller import Pending
from wsm.ending import Ending, SignalReceived, result_of, signals_raise


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


@pytest.mark.parametrize(
    "wait",
    [result_of, lambda future: Pending("request", lambda: None).carry_out(future.result).result()],
    ids=["future", "command"],
)
def test_a_signal_that_does_not_wake_the_main_thread_ends_its_wait_for_a_future_all_the_same(
    wait: Callable[[Future[None]], None],
) -> None:
    future: Future[None] = Future()
    seen = threading.Event()

    def other_thread() -> None:
        time.sleep(0.1)  # the main thread sleeps by now
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        seen.wait(10)
        future.set_result(None)

    thread = threading.Thread(target=other_thread)
    thread.start()
    try:
        with pytest.raises(SignalReceived), signals_raise():
            wait(future)
        assert not future.done()
    finally:
        seen.set()
        thread.join()


def test_a_wait_for_a_future_ends_in_time_or_with_what_the_future_ends_with() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        result_of(future, 0.0)
    with pytest.raises(TimeoutError):
        result_of(future, 0.01)
    future.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_of(future)
