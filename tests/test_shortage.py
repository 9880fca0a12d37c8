"""A process that is out of something is told from other errors, and its message says which limit to raise."""

from __future__ import annotations

import errno
import os

import pytest

from wsm.cli._base import failure_of
from wsm.command import FailureReport
from wsm.errors import Shortage, described, shortage_of
from wsm.strategies.errors import UnreadableFileError

NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("error", "lacking", "fix"),
    [
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/self/status"),
            Shortage.DESCRIPTORS,
            "NOFILE",
        ),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), Shortage.DESCRIPTORS_OF_HOST, "fs.file-max"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), Shortage.MEMORY, "memory.max"),
        (MemoryError(), Shortage.MEMORY, "memory.max"),
        (NO_THREAD, Shortage.THREADS, "pids.max"),
    ],
)
def test_a_shortage_is_known_and_its_message_says_what_to_raise(error, lacking, fix):
    assert shortage_of(error) is lacking
    said = FailureReport.of(0, "load_weights", error).message
    assert said.startswith(type(error).__name__)
    assert fix in said
    assert "MemoryError()" not in said
    if isinstance(error, OSError):
        assert fix in str(failure_of(error, with_traceback=False))


def test_an_error_of_wsm_that_a_shortage_has_caused_says_so_too():
    error = UnreadableFileError(file="part", reason="too many")
    error.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert shortage_of(error) is Shortage.DESCRIPTORS
    assert "RLIMIT_NOFILE" in FailureReport.of(0, "load_weights", error).message


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no such file"), RuntimeError("boom"), ValueError()])
def test_other_errors_are_none(error):
    assert shortage_of(error) is None
    assert "RLIMIT" not in described(error)
