"""The kernel's futex calls on an address, through libc. Knows addresses and 32-bit values only.

None of them carries the PRIVATE flag: the memory is a shared file mapping, and waiter and waker are
different processes. Every wait has a timeout. A wait returns for any reason; the caller looks again.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time
from collections.abc import Sequence

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAITV_NUMBER = 449  # Linux 5.16, the same on every architecture
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_FUTEX_32 = 2
_EVERYBODY = 2**31 - 1

#: Most words that one call of :func:`wait_any` takes.
MAX_WAITERS = 128

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Waiter(ctypes.Structure):
    """``struct futex_waitv`` of linux/futex.h."""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


@functools.cache
def has_futex() -> bool:
    """Whether the kernel lets this process use futexes."""
    cell = ctypes.c_uint32()
    return _FUTEX_NUMBER is not None and wake_all(ctypes.addressof(cell)) == 0


@functools.cache
def has_wait_any() -> bool:
    """Whether the kernel has ``futex_waitv`` and lets this process use it."""
    if _FUTEX_NUMBER is None:
        return False
    # No waiters is an invalid argument to a kernel that knows the call.
    _libc.syscall(ctypes.c_long(_FUTEX_WAITV_NUMBER), None, 0, 0, None, 0)
    return ctypes.get_errno() == errno.EINVAL


def wait_one(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32 bits at `address` are `value`, until woken, for `timeout_s` seconds at most."""
    timeout = _timespec(timeout_s)
    _libc.syscall(
        ctypes.c_long(_FUTEX_NUMBER or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_FUTEX_WAIT),
        ctypes.c_uint32(value),
        ctypes.byref(timeout),
        None,
        0,
    )


def wait_any(expected: Sequence[tuple[int, int]], timeout_s: float) -> None:
    """Sleep while every 32 bits are as expected, until woken on any, for `timeout_s` seconds at most.

    Parameters
    ----------
    expected : sequence of (int, int)
        Address and value of 1 to 128 words.
    timeout_s : float
        Seconds.
    """
    waiters = (_Waiter * len(expected))(
        *(_Waiter(value, address, _FUTEX_32, 0) for address, value in expected)
    )
    # This call takes a point in time, not a span.
    until = _timespec(time.monotonic() + timeout_s)
    _libc.syscall(
        ctypes.c_long(_FUTEX_WAITV_NUMBER),
        ctypes.byref(waiters),
        ctypes.c_uint(len(expected)),
        ctypes.c_uint(0),
        ctypes.byref(until),
        ctypes.c_int(time.CLOCK_MONOTONIC),
    )


def wake_all(address: int) -> int:
    """Wake everybody that waits on the 32 bits at `address`; return how many, -1 if the kernel refused."""
    woken: int = _libc.syscall(
        ctypes.c_long(_FUTEX_NUMBER or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_FUTEX_WAKE),
        ctypes.c_int(_EVERYBODY),
        None,
        None,
        0,
    )
    return woken


def _timespec(seconds: float) -> _Timespec:
    whole = int(seconds)
    return _Timespec(whole, int((seconds - whole) * 1e9))
