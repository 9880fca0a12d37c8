"""The clock of the host is one clock for all processes of a group, wherever their own began."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.needs import OWN_TIMES
from wsm import clock
from wsm.clock import SystemClock

TELL = "from wsm.clock import SystemClock; print(SystemClock().monotonic_ns())"


@pytest.mark.processes
@pytest.mark.needs("times")
def test_a_process_whose_clocks_began_at_another_moment_counts_the_hosts_time():
    before = SystemClock().monotonic_ns()
    told = subprocess.run([*OWN_TIMES, sys.executable, "-c", TELL], capture_output=True, check=True)
    assert before < int(told.stdout) < SystemClock().monotonic_ns()


@pytest.mark.parametrize("text", [None, "", "monotonic\n", "monotonic x y\n", "boottime 5 0\n"])
def test_a_kernel_that_says_nothing_of_offsets_has_none(monkeypatch, tmp_path, text):
    path = tmp_path / "timens_offsets"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(clock, "_OFFSETS", path)
    assert clock._of_the_host() is time.monotonic_ns
