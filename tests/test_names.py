"""No class name stands for two things, and packages say what they hold."""

from __future__ import annotations

import ast
import pickle
import re
from collections import defaultdict
from pathlib import Path

import wsm
from tests.sources import definitions, syntax_of

SOURCE = Path(wsm.__path__[0])
REPOSITORY = Path(__file__).parent.parent
PACKAGES = sorted(
    path.parent
    for root in (SOURCE, *(REPOSITORY / name for name in ("drawing", "examples", "explorer")))
    for path in root.rglob("__init__.py")
)


def test_no_class_name_stands_twice() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in definitions(syntax_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice


def test_a_package_names_every_module_of_its_own_and_none_that_is_gone() -> None:
    wrong = []
    for package in PACKAGES:
        text = ast.get_docstring(syntax_of(package / "__init__.py")) or ""
        modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
        modules |= {path.parent.name for path in package.glob("*/__init__.py")}
        gone = set(re.findall(r":mod:`\.(\w+)`", text)) - modules - {"__main__"}
        unnamed = {name for name in modules if not re.search(rf"(?<!\w){name}(?!\w)", text)}
        wrong += [f"{package.name} names {name}, which is gone" for name in sorted(gone)]
        wrong += [f"{package.name} does not name {name}" for name in sorted(unnamed)]
    assert not wrong


def test_a_package_whose_names_are_imported_late_is_pickled_by_its_name() -> None:
    """As Ray and Dask do with functions whose globals hold one."""
    assert pickle.loads(pickle.dumps(wsm)) is wsm  # noqa: S301 - what was written in this line
