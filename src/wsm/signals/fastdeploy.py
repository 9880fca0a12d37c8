"""FastDeploy's int32 status words, read and answered without FastDeploy noticing.

An engine that knows nothing of wsm creates ``/dev/shm/model_weights_status.{suffix}`` and two more,
writes a request into one and waits for the answer in the same place. So this word has two writers, and
only compare-exchange keeps the one from wiping out the other's value. Knows integers, not what they
mean; and never attaches through ``multiprocessing.shared_memory``, whose tracker would unlink the
engine's word when this process exits.

Compare-exchange on 32 bits of shared memory, by the compiler's own support library.

Python has no atomic read-modify-write: a plain ``+=`` from two processes loses a quarter of the
increments. ``libatomic.so.1`` exports the operations as functions; it comes with GCC's runtime and is on
every machine that runs numpy's or paddle's wheels, but need not be in a slim container.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any, final

from wsm.signals import errors
from wsm.signals._memory import SharedFile, opened, publish
from wsm.signals.errors import (
    EngineWordMissingError,
    SegmentAccessError,
    SegmentExistsError,
    SegmentMissingError,
)
from wsm.signals.names import SHARED_MEMORY_DIRECTORY, check_name

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
        raise errors.atomics_unavailable(library=_LIBRARY, reason=str(error)) from error
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
    kind : EngineWordKind
        Which word.
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
    BadInputError
        If the file is too small.
    SegmentNameError, SegmentAccessError
        If the suffix is none, or the file is of another kind or another user.
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
                    raise errors.engine_word_size(path=str(path), size=size)
                memory = SharedFile(descriptor, path, _INT32_BYTES)
        except SegmentMissingError:
            raise EngineWordMissingError(path=str(path)) from None
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
        RefusedError
            If it exists. (FastDeploy would unlink it, and leave its users with the orphan.)
        BadInputError
            If `value` is no int32.
        RefusedError, SegmentNameError, SegmentAccessError
            If it cannot be made.
        """
        path = engine_word_path(kind, suffix, directory)
        _check_value(path, value)
        content = value.to_bytes(_INT32_BYTES, "little", signed=True)
        try:
            unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
            publish(path, unfinished, _INT32_BYTES, content).close()
        except SegmentExistsError:
            raise errors.engine_word_exists(path=str(path)) from None
        return cls(kind, suffix, directory=directory)

    @staticmethod
    def exists(
        kind: EngineWordKind, suffix: str | int, *, directory: str | os.PathLike[str] | None = None
    ) -> bool:
        """Whether there is something under the word's name; looks without attaching."""
        return os.path.lexists(engine_word_path(kind, suffix, directory))

    def read(self) -> int:
        """Return the value."""
        return self._value[0]

    def store(self, value: int) -> None:
        """Write as an engine does, over whatever is there. Never an answer: that is :meth:`compare_exchange`.

        Raises
        ------
        BadInputError
            If `value` is no int32.
        """
        _check_value(self.path, value)
        self._value[0] = value

    def compare_exchange(self, expected: int, new: int) -> bool:
        """Write `new` if the value is `expected`, indivisibly.

        Returns
        -------
        bool
            False if another value stands there, which is then the next command; nothing was written.

        Raises
        ------
        RefusedError
            If ``libatomic.so.1`` is missing.
        BadInputError
            If one of the values is no int32.
        """
        _check_value(self.path, expected)
        _check_value(self.path, new)
        self._value[0]  # an address into unmapped memory would kill the process; this raises instead
        return compare_exchange_32(self._memory.address, expected, new)

    def recreated(self) -> bool:
        """Whether the engine has made a new word under this name; attach anew, this one is read no more."""
        return self._memory.is_replaced() and os.path.lexists(self.path)

    def removed(self) -> bool:
        """Whether the engine has removed the word and made no new one."""
        return not os.path.lexists(self.path)

    def unlink(self) -> None:
        """Remove the word if the name still means this one; for those who created it."""
        self._memory.remove()

    def close(self) -> None:
        """Unmap. Does nothing the second time."""
        self._value.release()
        self._memory.close()

    def __enter__(self) -> EngineWord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def engine_word_path(
    kind: EngineWordKind, suffix: str | int, directory: str | os.PathLike[str] | None = None
) -> Path:
    """Path of a word, whether it exists or not.

    Raises
    ------
    SegmentNameError
        If `suffix` is no sane part of a file name.
    """
    return Path(directory or SHARED_MEMORY_DIRECTORY) / f"{kind.value}.{check_name(str(suffix))}"


def _check_value(path: Path, value: int) -> None:
    # Bounds, not `in range(...)`: that walks through four billion numbers for an IntEnum.
    if not _MIN_INT32 <= value <= _MAX_INT32:
        raise errors.engine_word_value(path=str(path), value=value)
