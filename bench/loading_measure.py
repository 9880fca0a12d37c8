"""One way to load, measured in a process of its own, in turns with a copy of as many bytes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.environment import quiet_environment
from bench.loading_memory import watched
from bench.loading_model import Model
from bench.measure import CannotRunError, Distribution
from bench.page_cache import drop_page_cache


@dataclass(frozen=True)
class Case:
    """What is measured.

    Parameters
    ----------
    way : str
        A name in :data:`bench.loading_ways.WAYS` or :data:`bench.loading_peers.PEERS`.
    digests : bool
        Whether bytes are digested as they always are; False only to see what that costs.
    cold : bool
        Whether files are taken out of the page cache before each load.
    aim : float or None
        The part of a one-thread copy's speed to reach.
    extra_aim_mib : float or None
        The most memory to take beside the model's.
    """

    way: str
    digests: bool = True
    cold: bool = False
    aim: float | None = None
    extra_aim_mib: float | None = None

    @property
    def title(self) -> str:
        """How tables call it."""
        return ", ".join([self.way, *["no digest"] * (not self.digests), *["cold"] * self.cold])


@dataclass(frozen=True)
class Loading:
    """What one way to load took.

    Parameters
    ----------
    case : Case
        The way.
    model : Model
        What was loaded.
    ms : Distribution
        Milliseconds of a whole load; of an update in place they are its pause, as nothing is served.
    of_memcpy : float
        Its speed as a part of that of one thread that copies as many bytes: best against best, and the two
        took turns, so that a busy machine slows both down.
    extra_bytes : int
        The most memory that it took beside the model's.
    """

    case: Case
    model: Model
    ms: Distribution
    of_memcpy: float
    extra_bytes: int

    @property
    def gb_per_s(self) -> float:
        """Bytes of the model by the median, in 10**9 per second."""
        return self.model.total / self.ms.p50 / 1e6

    @property
    def us_per_tensor(self) -> float:
        """Microseconds of the median per tensor."""
        return self.ms.p50 * 1e3 / self.model.count


def measure(case: Case, model: Model, repeats: int) -> Loading:
    """Measure one case. Blocks.

    Raises
    ------
    CannotRunError
        If this machine lacks what it needs.
    RuntimeError
        If the measured process failed or ended; what it said is on the standard error output.
    """
    with tempfile.TemporaryDirectory(prefix="wsm-bench-") as directory:
        command = [sys.executable, "-m", "bench.loading_process", case.way, str(model.count)]
        command += [str(model.nbytes), directory, "with" if case.digests else "without"]
        with subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet_environment()
        ) as process:
            try:
                return _measured(case, model, repeats, _Asking(process), Path(directory))
            finally:
                if process.stdin is not None:
                    process.stdin.close()  # which ends it
                process.wait()


class _Asking:
    """The measured process, as something to ask."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.answer()

    def __call__(self, request: str) -> float:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError("the measured process ended; see what it wrote to the standard error output")
        for verdict, error in (("cannot run: ", CannotRunError), ("failed: ", RuntimeError)):
            if line.startswith(verdict):
                raise error(line.removeprefix(verdict).strip())
        return line


def _measured(case: Case, model: Model, repeats: int, ask: _Asking, directory: Path) -> Loading:
    def load() -> float:
        if case.cold:
            drop_page_cache(directory)
        return ask("load")

    ask("copy")
    ask("load")  # touches every page
    ask("trim")  # or what that load left in the allocator would hide what the next one takes
    with watched(ask.pid) as peak:
        load()
    loads, copies = zip(*((load(), ask("copy")) for _ in range(repeats)), strict=True)
    return Loading(
        case,
        model,
        Distribution.of([seconds * 1e3 for seconds in loads]),
        min(copies) / min(loads),
        _extra(case, peak.own, peak.shared),
    )


def _extra(case: Case, own: int, shared: int) -> int:
    """Only a stream's shared memory is there for the load; that of ``ipc`` is the trainer's or model's."""
    return own + shared if case.way == "ipc_async" else own
