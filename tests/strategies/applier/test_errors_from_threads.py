"""An error that one thread hands to another is raised there, and keeps nothing alive that its frames held."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from watched_target import no_collector

from wsm.clock import SystemClock
from wsm.strategies.buckets.sender import Sending
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.transports._foreign import Batches, ForeignThread
from wsm.worker._hot_run import Staging


class FailedError(Exception):
    """What the work raises."""


def fail():
    raise FailedError


def through_a_foreign_thread(work):
    thread = ForeignThread("wsm-test-foreign", SystemClock())
    try:
        thread.call(work, until_ns=SystemClock().monotonic_ns() + 60_000_000_000, observer=UNOBSERVED)
    finally:
        thread.end(lambda: None, wait_s=60)


def through_a_batch(work):
    def stream():
        yield "a", b"1"
        work()

    batches = Batches(stream(), keep=True)
    assert len(batches.take()) == 1
    batches.take()


def through_a_stager(work):
    nothing = SimpleNamespace(staged=None, facts={})
    context = SimpleNamespace(cancelled=lambda: False, done=nothing, facts=nothing.facts)
    action = SimpleNamespace(
        name="fail", precondition=lambda _: None, carry_out=lambda _: work(), probe=lambda _: None
    )
    stager = Staging(0, SystemClock())
    stager.start([action], context)
    try:
        while not stager.ended():
            time.sleep(0.001)
        stager.result()
    finally:
        stager.retire()
        assert stager.rest(60)


def through_a_sending(work):
    sending = Sending()
    sending.run(lambda _cancelled: work())
    sending.result(60)


@pytest.mark.parametrize(
    "through", [through_a_foreign_thread, through_a_batch, through_a_stager, through_a_sending]
)
def test_nothing_waits_for_a_collector_once_the_error_is_handled(through):
    seen = []

    def work():
        memory = np.zeros(1 << 16)
        seen.append(weakref.ref(memory))
        fail()

    def load():
        target = np.zeros(1 << 16)
        seen.append(weakref.ref(target))
        through(work)

    with no_collector():
        with pytest.raises(FailedError) as caught:
            load()
        del caught
        assert [memory() for memory in seen] == [None, None]


def test_what_a_sending_raised_is_raised_once_and_then_said_to_be_over():
    sending = Sending()
    sending.run(lambda _cancelled: fail())
    with pytest.raises(FailedError):
        sending.result()
    with pytest.raises(RuntimeError, match="was raised before"):
        sending.result()
