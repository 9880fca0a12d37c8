"""Loads over Mooncake's transfer engine, beside what the engine moves between two bare processes.

The trainer is a process of its own. The bare engine reads the same bytes into memory that it has read into
before, whole tensors in one batch by the call that the engine has for that, and looks at none of them; a load
covers, copies and digests every byte as always. The two take turns. ``python -m bench.mooncake [MiB]``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np

from bench.measure import Distribution
from wsm.strategies import MemoryTarget, MooncakeTransport, RsyncSource, TensorSpec, load
from wsm.strategies.mooncake.transfer_engine import _engine_class

_MIB = 1 << 20


@dataclass(frozen=True)
class MooncakeFound:
    """What whole loads took, and what the bare engine took for as many bytes.

    Parameters
    ----------
    load_ms, bare_ms : Distribution
        Milliseconds.
    of_bare : float
        Speed of a load as a part of the bare engine's: best against best.
    """

    load_ms: Distribution
    bare_ms: Distribution
    of_bare: float


def measure_mooncake(count: int, nbytes: int, repeats: int) -> MooncakeFound:
    """Measure a model of `count` tensors of `nbytes` each; the first load and read are not counted.

    Raises
    ------
    RefusedError
        If the engine, or a system library of it, is not there.
    """
    _engine_class()  # before the trainer, which could not say what it lacks
    command = [sys.executable, "-m", "bench.mooncake_process", str(count), str(nbytes)]
    with (
        ExitStack() as stack,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer,  # noqa: S603 - our own program
    ):
        assert trainer.stdin is not None  # noqa: S101 - for the type checker: it was asked for
        assert trainer.stdout is not None  # noqa: S101 - the same
        stack.callback(trainer.stdin.close)
        address, session, memory = trainer.stdout.readline().split()
        bare = stack.enter_context(_bare(session, int(memory), count, nbytes))
        ours = stack.enter_context(_ours(address, count, nbytes, trainer.stdin, trainer.stdout))
        ours()
        bare()
        loads, reads = zip(*((ours(), bare()) for _ in range(repeats)), strict=True)
    return MooncakeFound(
        Distribution.of([seconds * 1e3 for seconds in loads]),
        Distribution.of([seconds * 1e3 for seconds in reads]),
        min(reads) / min(loads),
    )


@contextmanager
def _ours(
    address: str, count: int, nbytes: int, told: IO[str], said: IO[str]
) -> Iterator[Callable[[], float]]:
    target = MemoryTarget(TensorSpec(f"layer.{index}.weight", "U8", (nbytes,)) for index in range(count))

    with closing(MooncakeTransport(address)) as transport:
        source = RsyncSource(transport)

        def once() -> float:
            told.write("\n")
            told.flush()
            version = int(said.readline())
            return load(source, target, name="rsync", version=version).seconds

        yield once


@contextmanager
def _bare(session: str, memory: int, count: int, nbytes: int) -> Iterator[Callable[[], float]]:
    engine = _engine_class()()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    target = np.zeros((count, nbytes), np.uint8)
    ours = [target.ctypes.data + index * nbytes for index in range(count)]
    theirs = [memory + index * nbytes for index in range(count)]

    def once() -> float:
        begun = time.perf_counter()
        code = engine.batch_transfer_sync_read(session, ours, theirs, [nbytes] * count)
        seconds = time.perf_counter() - begun
        if code != 0:
            raise RuntimeError(f"the bare engine could not read from {session} (code {code})")
        return seconds

    yield once


def main() -> None:
    """Print what was measured."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    for count, nbytes in ((16, mib * _MIB // 16), (1000, mib * _MIB // 1000)):
        found = measure_mooncake(count, nbytes, repeats=7)
        gib = count * nbytes / 2**30
        sys.stdout.write(
            f"{count} tensors of {nbytes} bytes: load {found.load_ms.p50:.1f} ms "
            f"({gib / found.load_ms.p50 * 1e3:.2f} GiB/s), bare engine {found.bare_ms.p50:.1f} ms "
            f"({gib / found.bare_ms.p50 * 1e3:.2f} GiB/s), best to best {found.of_bare:.2f}\n"
        )


if __name__ == "__main__":
    main()
