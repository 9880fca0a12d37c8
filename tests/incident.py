"""Incidents of others, as marks of the tests that fail on them, and the page that these marks complete.

``python -m tests.incident`` writes that column of the tables in docs/incidents.md anew.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "incidents.md"

_COLUMNS = "| incident | what went wrong there | what excludes it here | test |"


def incident(*numbers: str) -> pytest.MarkDecorator:
    """Mark a test that fails on what went wrong there; `numbers`: the first of each row of the page."""
    return pytest.mark.incident(*numbers)


def marked() -> Mapping[str, Sequence[tuple[Path, str]]]:
    """Return file and name of the tests that are marked with each number, as their sources say."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "@incident(" in text else ():
            for number in _numbers(node) if isinstance(node, ast.FunctionDef) else ():
                found[number].append((path, node.name))
    return found


def _numbers(test: ast.FunctionDef) -> Iterator[str]:
    for call in test.decorator_list:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "incident":
            yield from (ast.literal_eval(argument) for argument in call.args)


def rows(page: str) -> Iterator[tuple[str, str]]:
    """Iterate over the rows that have tests: the first number of each, and the row."""
    has_tests = False
    for line in page.splitlines():
        has_tests = line == _COLUMNS or (has_tests and line.startswith("|"))
        if has_tests and line != _COLUMNS and not line.startswith("| ---"):
            yield line[2:].split(" | ")[0].split(", ")[0], line


def with_tests(page: str) -> str:
    """Return the page with the marked tests in each row that has them."""
    tests = marked()
    for number, row in rows(page):
        names = [f"[{name[5:]}](../{path.relative_to(TESTS.parent)})" for path, name in tests.get(number, ())]
        *cells, _ = row.split(" | ")
        page = page.replace(row, " | ".join([*cells, f"{', '.join(names)} |"]))
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tests(PAGE.read_text()))
