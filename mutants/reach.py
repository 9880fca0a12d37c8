"""Which tests run a function: recorded in one run of them, on this machine, and kept in ``mutants-out/``."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mutants.entries import ROOMS, SOURCES, Entry
from mutants.watching import REACH

REPOSITORY = Path(__file__).parent.parent
OUT = REPOSITORY / "mutants-out"


class Test(NamedTuple):
    """A test that passed: the fewer functions it runs, the more it says of each."""

    slow: bool
    functions: int
    seconds: float
    name: str


class Reach:
    """What was recorded; nothing, where there was no run yet."""

    def __init__(self) -> None:
        path = OUT / "reach.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        self._of_tests: dict[str, tuple[float, str, list[str]]] = kept

    def record(self, paths: Iterable[str]) -> None:
        """Play tests, and keep what they ran, but not in processes that they start. Blocks for minutes."""
        for path in paths:
            with tempfile.TemporaryDirectory() as directory:
                found = Path(directory) / "reach.json"
                command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "mutants.watching"]
                subprocess.run(  # noqa: S603 - pytest, on tests of this repository
                    [*command, "-m", "not slow", path],
                    env={**os.environ, REACH: str(found)},
                    cwd=REPOSITORY,
                    check=False,
                )
                self._keep(json.loads(found.read_text()))

    def _keep(self, found: dict[str, tuple[float, str, list[tuple[str, int]]]]) -> None:
        for test, (seconds, tier, lines) in found.items():
            places = sorted({f"{module}:{_place(module, line)}" for module, line in lines})
            self._of_tests[test] = seconds, tier, places
        OUT.mkdir(exist_ok=True)
        (OUT / "reach.json").write_text(json.dumps(self._of_tests))

    def of(self, entry: Entry) -> list[Test]:
        """Return the tests that run the function of a fault, or anything of its module if it is in none.

        A table is run by nobody: of one, those that run anything of its room.
        """
        room, _ = ROOMS.get(entry.room, ((), ()))
        return self._that_run(lambda place: _runs(place, entry)) or self._that_run(
            lambda place: place.partition(":")[0] in room
        )

    def _that_run(self, runs: Callable[[str], bool]) -> list[Test]:
        return sorted(
            Test(tier != "thread", len(places), seconds, test)
            for test, (seconds, tier, places) in self._of_tests.items()
            if any(map(runs, places))
        )


def _runs(place: str, entry: Entry) -> bool:
    if entry.place.rpartition(".")[2].lstrip("_")[:1].islower():  # a function
        return place == f"{entry.module}:{entry.place}"
    return place.startswith(f"{entry.module}:")


def _place(module: str, line: int) -> str:
    """Return the innermost function around a line."""
    around = [place for first, last, place in _places(module) if first <= line <= last]
    return around[-1] if around else "<module>"


@cache
def _places(module: str) -> list[tuple[int, int, str]]:
    found = []

    def look(node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
            first = min(node.lineno, *(each.lineno for each in node.decorator_list), node.lineno)
            found.append((first, node.end_lineno or first, ".".join(names)))
        for child in ast.iter_child_nodes(node):
            look(child, names)

    look(ast.parse((SOURCES / module).read_bytes()), ())
    return found
