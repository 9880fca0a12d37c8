"""Tests played on one fault: in a copy of the sources, in a process that is ended where it hangs."""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from mutants.entries import ROOMS, SOURCES, Entry, applied
from mutants.reach import Reach
from mutants.watching import FAILED

REPOSITORY = Path(__file__).parent.parent

#: What tests import, and wsm: it takes longer than a test.
_IMPORTED = ("click", "hypothesis", "msgspec", "numpy", "structlog", "transitions", "xxhash", "yaml")
#: What each process of a run of tests has in its environment (:mod:`tests.leftovers`).
_SESSION = "WSM_TEST_SESSION"

#: How many tests are played together at most, and how many seconds they took when they passed.
_BATCHES = ((30, 3.0), (500, 20.0), (2000, 40.0))
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

    Attributes
    ----------
    left_out : dict of str to str
        Tests that are not believed, and why.
    """

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._sources = directory / "src"
        shutil.copytree(SOURCES.parent, self._sources)
        compileall.compile_dir(self._sources, quiet=2)
        self._session = secrets.token_hex(4)
        self._sound: set[str] = set()
        self.left_out: dict[str, str] = {}
        for name in _IMPORTED:
            importlib.import_module(name)

    def play(self, entry: Entry, reach: Reach) -> Played:
        """Play what has killed a fault, then all that is known to run it, until something fails. Blocks.

        What fails is believed if it passes without the fault, alone; what hangs, if it hangs alone, too.
        """
        changed = applied(entry, self._sources / "wsm")
        if changed is None:
            return Played("gone")
        for tests, seconds in self._batches(entry, reach):
            while played := self._run_with(entry.module, changed, tests, seconds):
                if played.tier == "hang" and not self._run_with(
                    entry.module, changed, [played.told], seconds
                ):
                    self.left_out[played.told] = "hung once"
                elif self._is_sound(played.told):
                    return played
        return Played("survives")

    def _batches(self, entry: Entry, reach: Reach) -> Iterator[tuple[list[str], float]]:
        """Iterate over what is played on a fault together, and how long that takes without it."""
        if entry.verdict == "killed":
            yield [entry.told], entry.seconds
        if not (tests := reach.of(entry)):
            yield ["-m", "not slow", *(ROOMS[entry.room][1] if entry.room in ROOMS else ())], _ROOM_S / _TIMES
        for most, most_s in _BATCHES:
            batch: list[str] = []
            seconds = 0.0
            while tests and len(batch) < most and seconds < most_s:
                seconds += tests[0].seconds
                batch.append(tests.pop(0).name)
            if batch:
                yield batch, seconds

    def _is_sound(self, test: str) -> bool:
        if test not in self._sound and test not in self.left_out:
            if self._run([test], _TEST_S) is None:
                self._sound.add(test)
            else:
                self.left_out[test] = "fails without a fault"
        return test in self._sound

    def _run_with(self, module: str, changed: bytes, tests: Sequence[str], seconds: float) -> Played | None:
        with self._instead(module, changed):
            return self._run(tests, seconds)

    @contextlib.contextmanager
    def _instead(self, module: str, changed: bytes) -> Iterator[None]:
        path = self._sources / "wsm" / module
        compiled = Path(importlib.util.cache_from_source(str(path)))
        before = path.read_bytes()
        compiled.unlink()
        path.write_bytes(changed)
        yield
        path.write_bytes(before)
        compiled.unlink(missing_ok=True)
        compileall.compile_file(path, quiet=2)

    def _run(self, tests: Sequence[str], seconds: float) -> Played | None:
        """Return what fails of some tests, and None if nothing does, or none is there any more."""
        failed, output = self._root / "failed", self._root / "output"
        failed.unlink(missing_ok=True)
        # A file that cannot be imported fails before any test of it is left out.
        tests = [test for test in tests if test.partition("::")[0] not in self.left_out]
        if not tests:
            return None
        arguments = [
            *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "mutants.watching"),
            *("-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-seed=0"),
            *(
                f"--timeout={_TEST_S + _TIMES * min(seconds, _TEST_S)}",
                f"--basetemp={self._root / 'tests'}",
            ),
            *(f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in self.left_out),
            *tests,
        ]
        variables = {"PYTHONPATH": str(self._sources), FAILED: str(failed), _SESSION: self._session}
        status = _apart(lambda: self._play_here(arguments, variables, output), _START_S + _TIMES * seconds)
        _end(self._session)
        said = output.read_text().splitlines()
        unknown = [line for line in said if "not found: " in line]
        if status == pytest.ExitCode.USAGE_ERROR and unknown:
            there = [test for test in tests if not any(line.endswith(test) for line in unknown)]
            return self._run(there, seconds) if 0 < len(there) < len(tests) else None
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        broken = next((line.split()[1] for line in said if line.startswith("ERROR ")), tests[-1])
        told = {"test": broken, "tier": "thread", "how": "is not even imported", "seconds": 0.0}
        told |= json.loads(failed.read_text()) if failed.exists() else {}
        tier = "hang" if status is None or told["how"] == "hangs" else told["tier"]
        return Played("killed", str(tier), round(float(str(told["seconds"])), 1), str(told["test"]))

    def _play_here(self, arguments: list[str], variables: Mapping[str, str], output: Path) -> int:
        """Play in this process, which ends then."""
        with output.open("w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(REPOSITORY)
        os.environ.update(variables)
        sys.path.insert(0, str(self._sources))
        return int(pytest.main(arguments))


def _apart(work: Callable[[], int], limit_s: float) -> int | None:
    """Return what a process returns that is forked from this one; None if it was ended, for it took too long.

    This one has imported what tests import, but nothing of wsm.
    """
    child = os.fork()
    if not child:
        os.setsid()
        try:
            os._exit(work())
        finally:
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
    process = psutil.Process(child)
    try:
        return process.wait(limit_s)
    except psutil.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [*process.children(recursive=True), process]:
                each.kill()
            process.wait()


def _end(session: str) -> None:
    """End everything that a run has started, whatever became of who started it, and what it has left."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_SESSION) == session:
                process.kill()
    for path in Path("/dev/shm").glob(f"*{session}*"):  # noqa: S108 - what carries our name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def copy() -> Iterator[Copy]:
    """Make a copy that goes away."""
    with tempfile.TemporaryDirectory(prefix="wsm-mutants-") as directory:
        Path(directory).chmod(0o755)  # some tests start processes of another user
        yield Copy(Path(directory))
