"""Sources of this repository as syntax trees, each parsed once for all tests in a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def syntax_of(path: Path) -> ast.Module:
    """Return the tree of a source file; shared, so to be read only."""
    return ast.parse(path.read_text(), filename=str(path))
