"""No name stands for two things, packages say what they hold, and sentences name who acts."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import wsm
from tests.sources import syntax_of

SOURCE = Path(wsm.__path__[0])
REPOSITORY = Path(__file__).parent.parent
PACKAGES = sorted(
    path.parent
    for root in (SOURCE, *(REPOSITORY / name for name in ("drawing", "examples", "explorer")))
    for path in root.rglob("__init__.py")
)

#: File names that may stand more than once, each with its reason.
PARALLEL_FILES = {
    "__init__": "what a package is for",
    "errors": "what can go wrong in a package",
    **dict.fromkeys(
        ("source", "strategy", "publish", "manifest", "configured", "names"),
        "the same part of another strategy",
    ),
    **dict.fromkeys(
        ("command", "groups"),
        "a command of the terminal, named like what it is about",
    ),
    "serving": "where a server listens: for commands, for scrapes, and the command line of the first",
    "group": "the rules of a group, and a group in one process for tests",
    "base": "what all of a package's modules build on",
    "fastdeploy": "the words of FastDeploy, and its objects",
}

#: Sentences with these words have no domain noun for a subject.
VAGUE_SUBJECTS = re.compile(
    r"\b(whoever|whomever|(some|any|no|every)body|(some|any|every)one|no[\s#*]+one|not[\s#*]+to[\s#*]+be)\b",
    re.IGNORECASE,
)


def test_no_class_name_stands_twice() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(syntax_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice


def test_no_file_name_stands_twice_without_a_reason() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        name = path.stem if path.stem == "__init__" else path.stem.lstrip("_")
        places[name].append(str(path.relative_to(SOURCE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert set(twice) == set(PARALLEL_FILES), "named without a reason, or a reason without names"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_names_every_module_of_its_own_and_none_that_is_gone(package: Path) -> None:
    text = ast.get_docstring(syntax_of(package / "__init__.py")) or ""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    unnamed = {name for name in modules if not re.search(rf"(?<!\w){name}(?!\w)", text)}
    assert not unnamed
    gone = set(re.findall(r":mod:`\.(\w+)`", text)) - modules - {"__main__"}
    assert not gone


def test_sentences_name_who_acts() -> None:
    beside = ("campaign", "models", "bench", "examples", "fuzz", "explorer", "drawing")
    own = [
        path for name in beside for path in (REPOSITORY / name).rglob("*") if path.suffix in (".py", ".pml")
    ]
    documents = [
        *(REPOSITORY / "docs").glob("*.md"),
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
    ]
    vague = []
    for path in (*SOURCE.rglob("*.py"), SOURCE.parent / "wsm_entry.py", *documents, *own):
        text = path.read_text().replace('"nobody"', "")  # a user's name on Linux
        for found in VAGUE_SUBJECTS.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            vague.append(f"{path.relative_to(REPOSITORY)}:{line}: {found[0]}")
    assert not vague, "name who acts: the rank, the segment, the controller"
