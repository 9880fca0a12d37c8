from __future__ import annotations

import os

from examples.rollout.process_life import BellListener, StepBell, bell_path


def test_ringing_ends_a_followers_wait(tmp_path):
    listener, bell = BellListener(tmp_path, 1), StepBell(tmp_path, ranks=2)
    silent, writable = os.pipe()
    bell.ring()
    listener.wait(silent, timeout_s=60)  # would time the test out
    bell.close()
    listener.close()
    os.close(silent)
    os.close(writable)
    assert not bell_path(tmp_path, 1).exists()


def test_a_follower_that_is_not_there_or_does_not_listen_holds_nobody_up(tmp_path):
    bell = StepBell(tmp_path, ranks=3)
    listener = BellListener(tmp_path, 2)
    for _ in range(2000):  # more than a socket holds
        bell.ring()
    bell.close()
    listener.close()


def test_another_descriptor_ends_the_wait_too(tmp_path):
    listener = BellListener(tmp_path, 1)
    readable, writable = os.pipe()
    os.write(writable, b"x")
    listener.wait(readable, timeout_s=60)
    listener.close()
    os.close(readable)
    os.close(writable)
