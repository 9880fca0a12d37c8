"""The bytes of a version once per node: one rank reads them into shared memory, the others map that.

Theory of operation
-------------------
The rank that locks the file of the version's name reads; no rank knows which others its node has. They
wait until the memory is whole, or the lock is free: then the reader has ended, and one of them reads. Memory
that is whole says so in its first bytes, and is never written again. Each rank maps it privately: a loader
that writes into a tensor changes its own pages alone.

The reader owns the name until all have mapped it; from then on the memory goes with the last process that has
it, however that ends. What ranks have left that were killed before has no owner, and goes before the next one
reads.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from wsm.errors import RefusedError, WsmError
from wsm.shared_directory import private_directory, try_lock_file
from wsm.strategies.applier.tensor_copy import default_threads
from wsm.strategies.digest import DIGEST_LENGTH, digest_of, running_digest
from wsm.strategies.ipc.shared_segment import HEAD_BYTES, AttachedSegment, OwnedSegment, sweep
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import aligned

_CHUNK_BYTES = 1 << 21
_WHOLE = b"whole"
_COPIES, _LOCKS = "vllm-copy-", "vllm-lock-"
_PAUSE_S = 0.005


class NodeCopy:
    """The bytes of tensors in memory that all ranks of a node share, until :meth:`close`.

    `nbytes`: of the memory. `is_reader`: whether this process has read the files. `digests`: of the tensors.
    """

    def __init__(self, name: str, tensors: Sequence[OfferedTensor]) -> None:
        self._tensors, specs = tensors, [tensor.spec for tensor in tensors]
        # Ranks that see other files read for themselves.
        seen = digest_of(repr([(spec.name, spec.dtype, spec.shape) for spec in specs]).encode())
        self._name, self._prefix = f"{name}-{seen[:8]}", f"{_COPIES}{name}-{seen[:8]}."
        self._begins = [*itertools.accumulate((aligned(spec.nbytes) for spec in specs), initial=HEAD_BYTES)]
        self.nbytes = self._begins[-1] + DIGEST_LENGTH * len(specs)
        self.digests: list[str] = []
        self.is_reader = False
        self._takes_name_away: Callable[[], object] | None = None
        self._mapped: AttachedSegment | None = None
        self._memory = memoryview(b"")

    def fill(self, room_bytes: int, is_dropped: Callable[[], bool]) -> bool:
        """Map the memory, or make it of the files; False: there is no room for it. Blocks.

        Raises
        ------
        RefusedError (``dropped``)
            If `is_dropped` says so meanwhile.
        WsmError
            If a file cannot be read.
        """
        if room_bytes <= 0:
            return False
        while not self._map():
            lock = try_lock_file(private_directory() / f"{_LOCKS}{self._name}")
            if lock is None:
                require_wanted(is_dropped)
                time.sleep(_PAUSE_S)
                continue
            try:
                if not self._map() and not self._read(room_bytes, is_dropped):
                    return False
            finally:
                lock.release(remove=True)
        return True

    def tensor(self, index: int) -> memoryview:
        """Return the bytes of one tensor; what is written there no other process sees."""
        begin = self._begins[index]
        return self._memory[begin : begin + self._tensors[index].spec.nbytes]

    def take_name_away(self) -> None:
        """Let no other rank find it; those that have mapped it keep it. Idempotent."""
        if self._takes_name_away is not None:
            self._takes_name_away()

    def close(self) -> None:
        """Let go. Idempotent; what was returned stays valid."""
        self.take_name_away()
        self._memory = memoryview(b"")
        if self._mapped is not None:
            self._mapped.close()

    def _map(self) -> bool:
        if self._mapped is not None:
            return True
        for path in private_directory().glob(f"{self._prefix}*"):
            with suppress(WsmError):  # it has just gone, or has no size yet
                found = AttachedSegment(path.name, self.nbytes, prefixes=[self._prefix], referrer="a rank")
                if found.read_at(0, len(_WHOLE)) != _WHOLE:
                    found.close()
                    continue
                self._mapped, self._memory = found, found.memory(0, self.nbytes)
                said = bytes(self._memory[self._begins[-1] :]).decode()
                self.digests = [said[at : at + DIGEST_LENGTH] for at in range(0, len(said), DIGEST_LENGTH)]
                return True
        return False

    def _read(self, room_bytes: int, is_dropped: Callable[[], bool]) -> bool:
        sweep(_COPIES)
        for path in private_directory().glob(f"{_LOCKS}*"):
            left = try_lock_file(path)
            if left is not None:
                left.release(remove=True)
        if self.nbytes > room_bytes:
            return False
        try:
            owned = OwnedSegment(self._prefix, self.nbytes)
        except RefusedError:
            return False
        try:
            owned.write_at(self._begins[-1], "".join(self._read_into(owned, is_dropped)).encode())
            owned.write_at(0, _WHOLE)
        except BaseException:
            owned.close()
            raise
        self.is_reader, self._takes_name_away = True, weakref.finalize(self, owned.close)
        return True

    def _read_into(self, owned: OwnedSegment, is_dropped: Callable[[], bool]) -> list[str]:
        """Read all tensors on threads, which a process that ends does not wait for; return their digests."""
        todo, errors = iter([*enumerate(self._tensors)]), list[BaseException]()
        digests = [""] * len(self._tensors)

        def is_over() -> bool:
            return bool(errors) or is_dropped()

        def work() -> None:
            try:
                for index, tensor in todo:
                    digests[index] = read_digest(tensor, is_over, owned.write_at, self._begins[index])
            except BaseException as error:  # noqa: BLE001 - it ends the other threads, and is raised below
                errors.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(default_threads())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return digests


def read_digest(
    tensor: OfferedTensor,
    is_dropped: Callable[[], bool],
    write: Callable[[int, memoryview], None] | None = None,
    begin: int = 0,
) -> str:
    """Read a tensor and return its digest; ``write(place, bytes)``, from `begin` on, gets its bytes. Blocks.

    Raises
    ------
    RefusedError (``dropped``)
        If `is_dropped` says so meanwhile.
    WsmError
        If its file cannot be read.
    """
    digest, nbytes = running_digest(), tensor.spec.nbytes
    buffer = memoryview(bytearray(min(nbytes, _CHUNK_BYTES)))
    for offset in range(0, nbytes, _CHUNK_BYTES):
        require_wanted(is_dropped)
        chunk = buffer[: nbytes - offset]
        tensor.read_into(offset, chunk)
        digest.update(chunk)
        if write is not None:
            write(begin + offset, chunk)
    return digest.hexdigest()


def require_wanted(is_dropped: Callable[[], bool]) -> None:
    """Give up where no update waits any more (code ``dropped``)."""
    if is_dropped():
        raise RefusedError("the version is not wanted any more", code="dropped")
