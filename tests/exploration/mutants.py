"""Who notices a small fault in the protocol or its tables: the explorer, only the tests beside it, or nobody?

``python tests/exploration/mutants.py`` makes every fault of :mod:`mutations` in every module of
``wsm.states`` and in the tables of ``wsm.states``, one at a time, and explores small groups with each. What
the explorer misses is shown to the unit tests; what they miss as well is either no fault (a condition that
another one implies, a default that nobody relies on) or a rule that nobody watches over. Run by hand, for it
takes a while::

    python tests/exploration/mutants.py                          # all of them
    python tests/exploration/mutants.py phases votes             # those of some modules
    python tests/exploration/mutants.py epochs --line 131        # those of one line
    python tests/exploration/mutants.py rank --no-tests          # the explorer alone
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mutations import Mutation, mutations

_ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(_ROOT))  # for explorer/, which stands beside the tests
_PACKAGE = _ROOT / "src" / "wsm"

MODULES = (
    *(f"wsm.states.{name}" for name in ("votes", "park", "view", "takeover", "decide", "epochs")),
    *(f"wsm.states.{name}" for name in ("rank_state", "rank", "phases", "restoring")),
    "wsm.states.holding",
    "wsm.states.joint",
    "wsm.states.table",
)

#: Small groups that differ in what can happen to them, the smallest first.
SCOPES = (
    "commands=2 steps=1 operations=hot_update,update",
    "fine=True operations=update,hot_update steps=0",
    "starts=empty rank_crashes=1",
    "broken_steps=1 operations=update,hot_update",
    "failures=1 steps=1",
    "stale_reads=1 steps=0",
    "commands=2 steps=0 failures=1",
    "controller_crashes=1",
    "rank_crashes=1",
    "failures=1 give_ups=1",
    "rank_crashes=2 steps=0 operations=update,clear starts=serving",
    "ranks=3 failures=1 steps=0",
    "helpers=1 rank_crashes=1 steps=0 operations=update,hot_update",
    "controller_crashes=1 rank_crashes=1 steps=0",
    "commands=2 halves=True steps=0 failures=1 operations=clear,update",
    "helpers=1 failures=1 steps=1",
    "halves=True rank_crashes=1 steps=0 operations=clear,update",
    "rank_crashes=1 failures=2 steps=0 operations=update starts=serving",
    "failures=6 steps=0 operations=clear starts=serving",
)

#: Where circles are looked for as well.
GRAPHS = ("failures=1 give_ups=1 steps=0", "rank_crashes=1 steps=0 operations=update,hot_update")

#: No fault needs more worlds to be seen within these bounds; some make them endless.
_MOST_WORLDS = 40_000
_LONGEST_S = 120

TESTS = ("tests/protocol", "tests/states")


class Verdict(NamedTuple):
    """What became of one fault.

    Attributes
    ----------
    by : str
        ``explorer``, ``tests``, or ``nobody``.
    how : str
        The bounds, or the first test that failed.
    rule : str
        What was broken.
    """

    by: str
    how: str = ""
    rule: str = ""


def module_file(module: str) -> Path:
    """Return where a module's source is."""
    return _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def explored(module: str, source: str, scopes: Sequence[str], graphs: Sequence[str]) -> Verdict:
    """Explore with another source for one module, in a process of its own that imports it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S, _LONGEST_S))
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        try:
            verdict = _explore_here(module, source, scopes, graphs)
        except BaseException as error:  # noqa: BLE001 - whatever it is: the exploration does not pass
            verdict = Verdict("explorer", "it ends", f"{type(error).__name__}: {error}")
        os.write(writing, json.dumps(verdict).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:  # noqa: PTH123 - a pipe, no path
        answer = stream.read()
    os.waitpid(child, 0)
    return Verdict(*json.loads(answer)) if answer else Verdict("explorer", "it never ends", "")


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self._module else None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self._source, str(module_file(self._module)), "exec"), module.__dict__)  # noqa: S102 - that is what an import does


def _explore_here(module: str, source: str, scopes: Sequence[str], graphs: Sequence[str]) -> Verdict:
    sys.meta_path.insert(0, _Instead(module, source))
    _import_nothing_else()
    search = importlib.import_module("explorer.search")
    scope_of = search.Scope.from_text
    for text in scopes:
        found = search.explore(scope_of(text), limit=_MOST_WORLDS)
        if found.violation is not None:
            return Verdict("explorer", text, found.violation.broken)
        if not found.complete:
            return Verdict("explorer", text, "there is no end of worlds")
    for text in graphs:
        wrong = search.endless(search.whole_graph(scope_of(text), limit=_MOST_WORLDS))
        if wrong is not None:
            return Verdict("explorer", f"{text} --graph", wrong.broken)
    return Verdict("nobody")


def _import_nothing_else() -> None:
    """Let `explorer` be imported without all that `wsm` itself brings along."""
    package = types.ModuleType("wsm")
    package.__path__ = [str(_PACKAGE)]
    sys.modules["wsm"] = package


def tested(module: str, source: str) -> Verdict:
    """Run the unit tests on a copy of the package with another source for one module."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "wsm"
        _mirror(_PACKAGE, copy, module_file(module).relative_to(_PACKAGE), source)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0", *TESTS],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": f"{folder}:{_ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return Verdict("nobody")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Verdict("tests", failed[0][:160] if failed else f"pytest ends with {done.returncode}")


def _mirror(real: Path, copy: Path, changed: Path, source: str) -> None:
    """Link to everything but the one file that is changed."""
    copy.mkdir()
    for each in real.iterdir():
        if each.name == changed.parts[0]:
            if len(changed.parts) == 1:
                (copy / each.name).write_text(source, encoding="utf-8")
            else:
                _mirror(each, copy / each.name, Path(*changed.parts[1:]), source)
        else:
            (copy / each.name).symlink_to(each)


def verdicts(
    modules: Sequence[str], *, line: int | None, tests: bool
) -> Iterator[tuple[str, Mutation, Verdict]]:
    """Iterate over every fault of some modules, and who noticed it."""
    for module in modules:
        caught: Counter[str] = Counter()
        for fault in mutations(module_file(module).read_text(encoding="utf-8")):
            if line not in (None, fault.line):
                continue
            # What caught the last ones is likely to catch the next one.
            scopes = sorted(SCOPES, key=lambda text: -caught[text])
            verdict = explored(module, fault.source, scopes, GRAPHS)
            caught[verdict.how] += 1
            if verdict.by == "nobody" and tests:
                verdict = tested(module, fault.source)
            yield module, fault, verdict


def main() -> None:
    """Print who noticed every fault, and how many there were of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="the last part of their names; none: all")
    parser.add_argument("--line", type=int, help="of the module; none: all")
    parser.add_argument("--no-tests", action="store_true", help="do not run the unit tests")
    asked = parser.parse_args()
    there = [module for module in MODULES if module_file(module).exists()]
    chosen = [each for each in there if not asked.modules or each.rpartition(".")[2] in asked.modules]
    score: Counter[str] = Counter()
    for module, fault, verdict in verdicts(chosen, line=asked.line, tests=not asked.no_tests):
        score[verdict.by] += 1
        said = f"{module.partition('.')[2]}:{fault.line} {fault.what}"
        print(f"{verdict.by:8} {said}\n           {verdict.how}: {verdict.rule}", flush=True)  # noqa: T201 - a table for whoever runs this file
    print(", ".join(f"{by} {count}" for by, count in score.most_common()))  # noqa: T201 - as above


if __name__ == "__main__":
    main()
