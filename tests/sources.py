"""Sources of this repository as syntax trees, each parsed once for all tests in a process."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import wsm

SOURCE = Path(wsm.__path__[0])


@functools.cache
def syntax_of(path: Path) -> ast.Module:
    """Return the tree of a source file; shared, so to be read only."""
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def modules() -> Mapping[str, ast.Module]:
    """Return the tree of every module of wsm by its name, a package's ``__init__`` by the package's."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = syntax_of(path)
    return found


def definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield every class and function of a source file, nested ones too.

    Expressions, of which there are ten for one statement, hold none and are not walked.
    """
    rest: list[ast.AST] = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            rest += getattr(node, block, ())
