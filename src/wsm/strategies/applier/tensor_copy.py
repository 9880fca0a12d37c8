"""Bringing one tensor's bytes into memory, and digesting them in the same pass while the cache has them.

Any thread may do it, with :class:`Steps` of its own. What reads a tensor and what digests it let go of the
interpreter's lock, so threads help as far as memory does (:func:`copy_on_threads`). Only bytes move on other
threads: targets, observers and whatever they call are the calling thread's own. The first error ends all of
it, and no thread is left then. Knows no targets.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from wsm.errors import BadInputError, UnfitError, raise_kept
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import RunningDigest, running_digest
from wsm.strategies.errors import DigestMismatchError
from wsm.strategies.finite import first_not_finite
from wsm.strategies.offer import OfferedTensor
from wsm.strategies.tensor import ITEM_BYTES
from wsm.strategies.transposing import TransposedMemory, block_bytes


@dataclass(frozen=True)
class Steps:
    """What each thread calls behind every chunk; by default nothing, so that no read ends early.

    Parameters
    ----------
    go_on : callable
        Raises if the next chunk of a tensor is no longer wanted.
    moved : callable
        Takes in the bytes of a chunk that is where it belongs.
    """

    go_on: Callable[[], object] = bool
    moved: Callable[[int], object] = bool


def copy_tensor(tensor: OfferedTensor, memory: memoryview, steps: Steps) -> str:
    """Read a tensor into `memory` (flat, of its size) and return the digest of what came. Blocks.

    Raises
    ------
    DigestMismatchError, BadInputError (``not-finite``)
        If that is not what was promised.
    """
    length = len(memory)
    digest = running_digest()
    bad = None
    if length <= (tensor.piece_bytes or CHUNK_BYTES) and length <= CHUNK_BYTES:
        # Most tensors of most models are small, and what is done for each of them adds up.
        if length:
            tensor.read_into(0, memory)
            digest.update(memory)
            if tensor.finite:
                bad = _first_bad(tensor, 0, memory, None)
            if tensor.check_chunk is not None:
                tensor.check_chunk(length, digest)
            steps.moved(length)
        return _verified(tensor, digest.hexdigest(), bad)
    if not (tensor.piece_bytes or tensor.finite or tensor.check_chunk):
        _copy_plain(tensor, memory, digest, steps)
        return _verified(tensor, digest.hexdigest(), None)
    return _digest(tensor, steps, lambda begin, end: memory[begin:end])


def _copy_plain(tensor: OfferedTensor, memory: memoryview, digest: RunningDigest, steps: Steps) -> None:
    """Copy and digest, and do nothing else between the two.

    Threads that copy let go of the interpreter's lock in both calls. What they do between holding it another
    may have to be put to sleep for, and woken, which takes as long as copying a chunk.
    """
    read_into, update, moved, go_on = tensor.read_into, digest.update, steps.moved, steps.go_on
    for begin in range(0, len(memory), CHUNK_BYTES):
        if begin:
            moved(CHUNK_BYTES)
            go_on()
        chunk = memory[begin : begin + CHUNK_BYTES]
        read_into(begin, chunk)
        update(chunk)
    moved(len(chunk))


def copy_transposed(tensor: OfferedTensor, memory: memoryview, steps: Steps) -> str:
    """Read a tensor into `memory` with its last two axes exchanged; return the digest of what came. Blocks.

    Takes :func:`wsm.strategies.transposing.block_bytes` besides.

    Raises
    ------
    DigestMismatchError, BadInputError (``not-finite``)
        If that is not what was promised.
    """
    there = TransposedMemory(memory, tensor.spec)
    size = block_bytes(tensor.spec)
    block = memoryview(bytearray(size))

    def put(begin: int, end: int) -> None:
        if end % size == 0 or end == len(memory):
            first = begin - begin % size
            there.put(first, block[: end - first])

    return _digest(
        tensor,
        steps,
        lambda begin, end: block[begin % size : begin % size + end - begin],
        put=put,
        block=size,
    )


def digest_tensor(tensor: OfferedTensor, kept: memoryview, steps: Steps) -> str:
    """Digest a tensor where it lies and return the digest. Blocks.

    Raises
    ------
    DigestMismatchError, BadInputError (``not-finite``)
        If it is not what was promised.
    """
    return _digest(tensor, steps, lambda begin, end: kept[begin:end], reads=False)


def check_finite_promise(tensor: OfferedTensor, data: memoryview) -> None:
    """See that bytes whose digest is right are finite, if that was promised. Blocks.

    Raises
    ------
    BadInputError (``not-finite``)
        If they are not.
    """
    bad = first_not_finite(tensor.spec.dtype, data) if tensor.finite else None
    if bad is not None:
        raise _not_finite(tensor, bad)


def digest_source(tensor: OfferedTensor, steps: Steps) -> str:
    """Read a tensor that is not kept, through memory of one chunk, and return its digest. Blocks.

    Raises
    ------
    DigestMismatchError
        If it is not what was promised.
    """
    buffer = memoryview(bytearray(min(tensor.spec.nbytes, CHUNK_BYTES)))
    return _digest(replace(tensor, finite=False), steps, lambda begin, end: buffer[: end - begin])


def _digest(
    tensor: OfferedTensor,
    steps: Steps,
    chunk_at: Callable[[int, int], memoryview],
    *,
    reads: bool = True,
    put: Callable[[int, int], None] | None = None,
    block: int | None = None,
) -> str:
    """Read a tensor chunk by chunk and digest it; return its digest, verified. Blocks.

    `chunk_at` says where a chunk belongs, or lies already if nothing `reads`; `put` is told when it is there.
    """
    digest = running_digest()
    bad = None
    for begin, end in _chunks(tensor.spec.nbytes, tensor.piece_bytes, steps, block):
        chunk = chunk_at(begin, end)
        if reads:
            tensor.read_into(begin, chunk)
        digest.update(chunk)
        if tensor.finite:
            bad = _first_bad(tensor, begin, chunk, bad)
        if tensor.check_chunk is not None:
            tensor.check_chunk(end, digest)
        if put is not None:
            put(begin, end)
        steps.moved(end - begin)
    return _verified(tensor, digest.hexdigest(), bad)


def _first_bad(tensor: OfferedTensor, begin: int, chunk: memoryview, known: int | None) -> int | None:
    """Return the index of the first element that is not finite, of the chunks up to this one."""
    if known is not None:
        return known
    found = first_not_finite(tensor.spec.dtype, chunk)
    return None if found is None else found + begin // ITEM_BYTES[tensor.spec.dtype]


def _verified(tensor: OfferedTensor, digest: str, bad: int | None) -> str:
    """Damage is told before NaN, which damage may look like."""
    if tensor.digest is not None and digest != tensor.digest:
        raise DigestMismatchError(
            tensor=tensor.spec.name, origin=tensor.origin, expected=tensor.digest, actual=digest
        )
    if bad is not None:
        raise _not_finite(tensor, bad)
    return digest


def _not_finite(tensor: OfferedTensor, index: int) -> BadInputError:
    name, origin = tensor.spec.name, tensor.origin
    return UnfitError(
        f"tensor {name!r} of {origin} is not finite from element {index} on (in C order), although its "
        "manifest says finite; publish a version without NaN",
        code="not-finite",
        tensor=name,
        origin=origin,
        index=index,
    )


def _chunks(
    length: int, piece_bytes: int, steps: Steps, block: int | None = None
) -> Iterator[tuple[int, int]]:
    """Cut a tensor so that no chunk is too long for the cache or lies in two pieces, or blocks."""
    begin = 0
    while begin < length:
        if begin:
            steps.go_on()
        end = min(begin + CHUNK_BYTES, length)
        if piece_bytes:
            end = min(end, begin - begin % piece_bytes + piece_bytes)
        if block is not None:
            end = min(end, begin - begin % block + block)
        yield begin, end
        begin = end


# How long the calling thread waits for the others between two looks at cancellation.
_GLANCE_S = 0.02
# A tensor larger than this part of all begins first: were it the last, the others would wait for it.
_LARGE_PART = 32


#: More threads of one rank than this gain nothing: they fill any memory bus.
MOST_THREADS = 8


def default_threads(ranks: int = 1) -> int:
    """Return how many threads a load uses by default: this rank's part of the cores, 1 to 8.

    Parameters
    ----------
    ranks : int
        How many ranks of this host load at the same time. They share the cores that this process may run on.
    """
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // ranks))


@dataclass
class CopyJob:
    """One tensor to bring into memory, or to digest where it lies.

    Parameters
    ----------
    tensor : OfferedTensor
        What to read.
    memory : memoryview
        Where its bytes belong, or lie already.
    kept : bool
        Whether they lie there already.
    digest : str
        Digest of its bytes, once the job is done.
    """

    tensor: OfferedTensor
    memory: memoryview
    kept: bool
    digest: str = ""

    def run(self, steps: Steps) -> None:
        """Do it. Blocks."""
        work = digest_tensor if self.kept else copy_tensor
        self.digest = work(self.tensor, self.memory, steps)


def copy_on_threads(jobs: Sequence[CopyJob], threads: int, steps: Steps) -> None:
    """Do all `jobs`. Blocks until every thread has ended, also if it raises.

    Parameters
    ----------
    jobs : sequence of CopyJob
        Of an offer that may be read in parallel.
    threads : int
        How many at most; with one, the calling one does all.
    steps : Steps
        Called from the calling thread alone, for what all threads do.

    Raises
    ------
    BaseException
        Whatever went wrong on one of them, which ends the others at their next chunk.
    """
    total, threads = sum(len(job.memory) for job in jobs), min(threads, len(jobs))
    # Apart from the largest, tensors are read in the source's own order, which disks are fastest in.
    queue = deque(sorted(jobs, key=lambda job: -len(job.memory) if _large(job, total) else 0))
    if threads < 2:
        _work(queue, steps)
        return
    stopped, moved = threading.Event(), [0] * threads

    def go_on() -> None:
        if stopped.is_set():
            raise _StoppedError

    def work(index: int) -> None:
        def count(nbytes: int) -> None:
            moved[index] += nbytes

        try:
            _work(queue, Steps(go_on, count))
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="wsm-load") as pool:
        try:
            workers, told = [pool.submit(work, index) for index in range(threads)], 0
            while wait(workers, _GLANCE_S).not_done:
                steps.go_on()
                told = _tell(steps, moved, told)
        finally:
            stopped.set()
    errors = [worker.exception() for worker in workers]
    failed = [error for error in errors if error is not None and not isinstance(error, _StoppedError)]
    workers.clear()
    errors.clear()
    raise_kept(failed)
    _tell(steps, moved, told)


class _StoppedError(Exception):
    """Another thread's error ended this one's work."""


def _work(queue: deque[CopyJob], steps: Steps) -> None:
    """Take jobs off a queue that other threads take some off, too."""
    while True:
        try:
            job = queue.popleft()
        except IndexError:
            return
        steps.go_on()
        job.run(steps)


def _tell(steps: Steps, moved: Sequence[int], told: int) -> int:
    """Tell of what was moved since it was last told of; return how much that is in all."""
    done = sum(moved)
    if done > told:
        steps.moved(done - told)
    return done


def _large(job: CopyJob, total: int) -> bool:
    return len(job.memory) * _LARGE_PART > total
