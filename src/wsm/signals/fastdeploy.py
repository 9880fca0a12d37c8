"""FastDeploy's int32 status words and its sign of life, read and written without FastDeploy noticing.

An engine that knows nothing of wsm creates ``/dev/shm/model_weights_status.{suffix}`` and two more, writes a
request into one and waits for the answer in the same place. Only compare-exchange keeps its two writers from
wiping out each other's value: a plain ``+=`` from two processes loses a quarter of the increments. It comes
from ``libatomic.so.1``, which is on every machine that runs numpy's or paddle's wheels, but need not be in a
slim container. No word is attached through ``multiprocessing.shared_memory``, whose tracker would unlink it.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import secrets
import time
from pathlib import Path
from typing import Any, final

from wsm.errors import BadInputError, RefusedError
from wsm.shared_directory import SHARED_MEMORY
from wsm.signals._memory import SharedFile, opened, publish
from wsm.signals.errors import (
    EngineWordMissingError,
    SegmentAccessError,
    SegmentMissingError,
)
from wsm.signals.layout import check_name

_LIBRARY = "libatomic.so.1"
_SEQUENTIALLY_CONSISTENT = 5


def compare_exchange_32(address: int, expected: int, new: int) -> bool:
    """Store `new` if the aligned int32 at `address` is `expected`, in one indivisible step; whether it was.

    Raises
    ------
    RefusedError
        If the library cannot be loaded.
    """
    wanted = ctypes.c_int32(expected)
    order = _SEQUENTIALLY_CONSISTENT
    return bool(_compare_exchange()(address, ctypes.byref(wanted), new, order, order))


@functools.cache
def _compare_exchange() -> Any:
    try:
        function = ctypes.CDLL(_LIBRARY)["__atomic_compare_exchange_4"]
    except (OSError, AttributeError) as error:
        raise RefusedError(
            f"{_LIBRARY} cannot be loaded ({error}), and FastDeploy's words are never answered without it; "
            "install the system package libatomic1 (Debian, Ubuntu) or libatomic (Fedora, RHEL)",
            code="atomics-unavailable",
            library=_LIBRARY,
            reason=str(error),
        ) from error
    function.restype = ctypes.c_bool
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, ctypes.c_int)
    return function


_INT32_BYTES = 4
_MIN_INT32, _MAX_INT32 = -(1 << 31), (1 << 31) - 1


class EngineWordKind(enum.Enum):
    """Which of the three words; the value is FastDeploy's own name for it."""

    WEIGHTS = "model_weights_status"
    KV_CACHE = "kv_cache_status"
    PREFIX_TREE = "prefix_tree_status"


@final
class EngineWord:
    """One int32 word of an engine, attached.

    Parameters
    ----------
    suffix : str or int
        What follows the name: the engine worker queue port of that data-parallel part.
    directory : path or None
        Where it lies; ``/dev/shm`` by default.
    user : int or None
        Whose word is taken besides our own: the user who writes it commands the group.

    Raises
    ------
    EngineWordMissingError
        If no engine has created it.
    BadInputError, SegmentNameError, SegmentAccessError
        If the file is too small, of another kind or another user, or the suffix is none.
    """

    def __init__(
        self,
        kind: EngineWordKind,
        suffix: str | int,
        *,
        directory: str | os.PathLike[str] | None = None,
        user: int | None = None,
    ) -> None:
        path = engine_word_path(kind, suffix, directory)
        try:
            with opened(path, also=() if user is None else (user,)) as (descriptor, size):
                if size < _INT32_BYTES:
                    raise BadInputError(
                        f"the engine word {path} has {size} bytes where an int32 needs 4; "
                        "remove the file and restart the engine",
                        code="engine-word-size",
                        path=str(path),
                        size=size,
                    )
                memory = SharedFile(descriptor, path, _INT32_BYTES)
        except SegmentMissingError:
            raise EngineWordMissingError(
                f"there is no engine word {path}; start the engine first and check the suffix "
                "(its own engine worker queue port, one per data-parallel part)",
                path=str(path),
            ) from None
        except SegmentAccessError as error:
            fix = "name its user's id in the configuration (engine_words: user) if its engine is to command"
            raise SegmentAccessError(path=str(path), reason=error.context["reason"], fix=fix) from error
        self.kind = kind
        self.suffix = str(suffix)
        self.path = path
        self._memory = memory
        self._value = memory.cast("i")

    @classmethod
    def create(
        cls,
        kind: EngineWordKind,
        suffix: str | int,
        value: int = 0,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> EngineWord:
        """Create the word as an engine would, 4 bytes of mode 0600, and attach it; :meth:`unlink` it later.

        Raises
        ------
        BadInputError
            If `value` is no int32.
        RefusedError, SegmentNameError, SegmentAccessError
            If it exists (FastDeploy would unlink it, and leave its users with the orphan), or cannot be made.
        """
        path = engine_word_path(kind, suffix, directory)
        _check_value(path, value)
        content = value.to_bytes(_INT32_BYTES, "little", signed=True)
        try:
            unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
            publish(path, unfinished, _INT32_BYTES, content).close()
        except FileExistsError:
            raise RefusedError(
                f"the engine word {path} exists already; use another suffix, "
                "or remove the file if no engine with this suffix lives",
                code="engine-word-exists",
                path=str(path),
            ) from None
        return cls(kind, suffix, directory=directory)

    def read(self) -> int:
        """Return the value."""
        return self._value[0]

    def store(self, value: int) -> None:
        """Write an int32 (else BadInputError) over what is there. An answer uses :meth:`compare_exchange`."""
        _check_value(self.path, value)
        self._value[0] = value

    def compare_exchange(self, expected: int, new: int) -> bool:
        """Write `new` if the value is `expected`, indivisibly; False if the next command stands there.

        Raises
        ------
        RefusedError, BadInputError
            If ``libatomic.so.1`` is missing; if one of the values is no int32.
        """
        _check_value(self.path, expected)
        _check_value(self.path, new)
        self._value[0]  # an address into unmapped memory would kill the process; this raises instead
        return compare_exchange_32(self._memory.address, expected, new)

    def is_replaced(self) -> bool:
        """Whether the engine has removed the word, or made a new one: this one is read no more."""
        return self._memory.is_replaced()

    def unlink(self) -> None:
        """Remove the word if the name still means this one; for those who created it."""
        self._memory.remove()

    def close(self) -> None:
        """Unmap. Does nothing the second time."""
        self._value.release()
        self._memory.close()

    def __enter__(self) -> EngineWord:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def engine_word_path(
    kind: EngineWordKind, suffix: str | int, directory: str | os.PathLike[str] | None = None
) -> Path:
    """Return the path of a word, whether it exists or not; SegmentNameError if `suffix` is none."""
    return Path(directory or SHARED_MEMORY) / f"{kind.value}.{check_name(str(suffix))}"


def _check_value(path: Path, value: int) -> None:
    # Bounds, not `in range(...)`: that walks through four billion numbers for an IntEnum.
    if not _MIN_INT32 <= value <= _MAX_INT32:
        raise BadInputError(
            f"{value} does not fit the int32 word {path}; pass a status code",
            code="engine-word-value",
            path=str(path),
            value=value,
        )


#: When each worker of an engine was last seen at work: the engine answers ``/health`` by the age of these
#: times, and its cache process takes a worker for dead by them. A worker inside a long action writes none.
_LIVE_SIGNAL = "worker_healthy_live_signal"
#: FastDeploy has so many places at most on a host.
_PLACES = 8


@final
class LiveSignal:
    """One worker's place in the signal of its part; attached when it is there, and written by no timer.

    `suffix` is the engine worker queue port of that data-parallel part, `rank` that of the worker in it.
    """

    def __init__(
        self, suffix: str | int, rank: int, *, directory: str | os.PathLike[str] | None = None
    ) -> None:
        self._path = Path(directory or SHARED_MEMORY) / f"{_LIVE_SIGNAL}.{check_name(str(suffix))}"
        self._rank = rank
        self._memory: SharedFile | None = None
        self._times: memoryview[int] | None = None
        self._second = 0

    def beat(self) -> None:
        """Write the present second, once; does nothing while the engine has no such signal. Never raises."""
        second = int(time.time())
        if second == self._second:
            return
        self._second = second
        if self._memory is not None and self._memory.is_replaced():
            self.close()
        if self._times is None:
            self._attach()
        if self._times is not None:
            self._times[self._rank % _PLACES % len(self._times)] = second

    def seen(self) -> int | None:
        """Return the second, of the epoch, in which the worker was last seen; None: nothing says it."""
        if self._times is None:
            self._attach()
        return None if self._times is None else self._times[self._rank % _PLACES % len(self._times)] or None

    def close(self) -> None:
        """Unmap. Does nothing the second time."""
        times, self._times = self._times, None
        memory, self._memory = self._memory, None
        if times is not None:
            times.release()
        if memory is not None:
            memory.close()

    def _attach(self) -> None:
        try:
            with opened(self._path) as (descriptor, size):
                length = size // _INT32_BYTES * _INT32_BYTES
                if length:
                    self._memory = SharedFile(descriptor, self._path, length)
                    self._times = self._memory.cast("i")
        except (SegmentMissingError, SegmentAccessError, OSError, ValueError):
            return  # ValueError: it has become shorter meanwhile
