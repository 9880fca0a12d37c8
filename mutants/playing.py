"""Tests played on one fault: in a copy of the sources, in a process that is ended where it hangs."""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from mutants.entries import ROOMS, SOURCES, Entry, applied
from mutants.reach import Reach
from mutants.watching import FAILED
from tests.leftovers import SESSION

REPOSITORY = Path(__file__).parent.parent

#: Seconds of tests, as they were when they passed, that are played together: the fastest first.
_BATCHES_S = (3.0, 20.0, 300.0)
#: What takes that many times as long as it did, and this much more, hangs: a test, and a batch of them.
_TIMES = 6
_TEST_S = 30
_START_S = 120
#: All tests of a room, where nobody knows which of them run a fault.
_ROOM_S = 1800


class Played(NamedTuple):
    """What became of one fault now: ``killed``, ``survives`` or ``gone``; the rest as in the list."""

    verdict: str
    tier: str = ""
    seconds: float = 0.0
    told: str = ""


class Copy:
    """A copy of the sources, in which one file at a time is another.

    Parameters
    ----------
    directory : Path
        Where; it must be empty.
    """

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._sources = directory / "src"
        shutil.copytree(SOURCES.parent, self._sources, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self._sources, quiet=2)
        self._own_mounts = _own_mounts()

    def play(self, entry: Entry, reach: Reach) -> Played:
        """Play what has killed a fault, then all that is known to run it, until something fails. Blocks."""
        changed = applied(entry)
        if changed is None:
            return Played("gone")
        with self._instead(entry.module, changed):
            if entry.verdict == "killed" and (played := self._run([entry.told], entry.seconds)):
                return played
            if not (tests := reach.of(entry)):
                paths = ROOMS[entry.room][1] if entry.room in ROOMS else []
                return self._run(["-m", "not slow", *paths], _ROOM_S / _TIMES) or Played("survives")
            for most_s in _BATCHES_S:
                batch, seconds = [], 0.0
                while tests and seconds < most_s:
                    seconds += tests[0].seconds
                    batch.append(tests.pop(0).name)
                if batch and (played := self._run(batch, seconds)):
                    return played
        return Played("survives")

    @contextlib.contextmanager
    def _instead(self, module: str, changed: bytes) -> Iterator[None]:
        path = self._sources / "wsm" / module
        compiled = Path(importlib.util.cache_from_source(str(path)))
        compiled.unlink()
        path.write_bytes(changed)
        yield
        shutil.copy2(SOURCES / module, path)
        compiled.unlink(missing_ok=True)
        compileall.compile_file(path, quiet=2)

    def _run(self, tests: Sequence[str], seconds: float) -> Played | None:
        """Return what fails of some tests, and None if nothing does, or none is there any more."""
        arguments, failed, output = (self._root / name for name in ("arguments", "failed", "output"))
        arguments.write_text("".join(f"{test}\n" for test in tests))
        failed.unlink(missing_ok=True)
        session = f"mutants-{os.getpid()}"
        limit_s = _TEST_S + _TIMES * min(seconds, _BATCHES_S[1])
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-p", "mutants.watching", f"--timeout={limit_s}", f"--basetemp={self._root / 'tests'}"),
            *("--hypothesis-seed=0", f"@{arguments}"),
        ]
        variables = {
            "PYTHONPATH": str(self._sources),
            FAILED: str(failed),
            SESSION: session,
            "HYPOTHESIS_PROFILE": "ci",
        }
        with output.open("w") as said:
            process = subprocess.Popen(  # noqa: S603 - pytest, on tests of this repository
                [*self._own_mounts, *command],
                env={**os.environ, **variables},
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(_START_S + _TIMES * seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end_session(session)
                process.wait()
        unknown = [line for line in output.read_text().splitlines() if "not found: " in line]
        if status == 4 and unknown:
            there = [test for test in tests if not any(line.endswith(test) for line in unknown)]
            return self._run(there, seconds) if 0 < len(there) < len(tests) else None
        if status == 0:
            return None
        told = {"test": tests[0], "tier": "thread", "how": "is not even imported", "seconds": 0.0}
        told |= json.loads(failed.read_text()) if failed.exists() else {}
        tier = "hang" if status is None or told["how"] == "hangs" else told["tier"]
        return Played("killed", str(tier), round(float(str(told["seconds"])), 1), str(told["test"]))


def _own_mounts() -> list[str]:
    """Return what gives a process a ``/dev/shm`` of its own, which goes with it, where that is allowed."""
    command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    try:
        done = subprocess.run([*command, "true"], capture_output=True, check=False)  # noqa: S603 - a constant
    except FileNotFoundError:
        return []
    return [] if done.returncode else command


def _end_session(session: str) -> None:
    """End everything that a run has started, whatever became of who started it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(SESSION) == session:
                process.kill()


@contextlib.contextmanager
def copy() -> Iterator[Copy]:
    """Make a copy that goes away."""
    with tempfile.TemporaryDirectory(prefix="wsm-mutants-") as directory:
        yield Copy(Path(directory))
