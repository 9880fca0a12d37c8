"""Compare-exchange on 32 bits of shared memory, by the compiler's own support library.

Python has no atomic read-modify-write: a plain ``+=`` from two processes loses a quarter of the
increments. ``libatomic.so.1`` exports the operations as functions; it comes with GCC's runtime and is on
every machine that runs numpy's or paddle's wheels, but need not be in a slim container.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from wsm.signals import errors

_LIBRARY = "libatomic.so.1"
_SEQUENTIALLY_CONSISTENT = 5


def compare_exchange_32(address: int, expected: int, new: int) -> bool:
    """Store `new` if the aligned int32 at `address` is `expected`, in one indivisible step.

    Returns
    -------
    bool
        Whether it was, and the store happened.

    Raises
    ------
    RefusedError
        If the library is not to be had.
    """
    wanted = ctypes.c_int32(expected)
    order = _SEQUENTIALLY_CONSISTENT
    return bool(_compare_exchange()(address, ctypes.byref(wanted), new, order, order))


@functools.cache
def _compare_exchange() -> Any:
    try:
        function = ctypes.CDLL(_LIBRARY)["__atomic_compare_exchange_4"]
    except (OSError, AttributeError) as error:
        raise errors.atomics_unavailable(library=_LIBRARY, reason=str(error)) from error
    function.restype = ctypes.c_bool
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, ctypes.c_int)
    return function
