"""Rules of this code base that no linter knows: sizes, names, reasons, constant events."""

from __future__ import annotations

import ast
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import wsm
from tests.sources import definitions, syntax_of
from wsm import log

SOURCE = Path(wsm.__path__[0])
REPOSITORY = Path(__file__).parent.parent
MAX_CODE_LINES = 600
MAX_FUNCTION_LINES = 70
VAGUE = {
    "util",
    "utils",
    "helper",
    "helpers",
    "manager",
    "managers",
    "handler",
    "handlers",
    "common",
    "misc",
    "dl",
}
EVENTS = {
    name: value
    for name, value in vars(log).items()
    if name.isupper() and isinstance(value, str) and "." in value
}
EVENT_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}

TOOLS = ("bench", "campaign", "drawing", "examples", "explorer", "fuzz", "mutants")
FILES = sorted(
    [*SOURCE.rglob("*.py"), *(path for name in TOOLS for path in (REPOSITORY / name).rglob("*.py"))]
)

PACKAGES = sorted(
    path.parent
    for root in (SOURCE, *(REPOSITORY / name for name in ("drawing", "examples", "explorer")))
    for path in root.rglob("__init__.py")
)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in definitions(tree) if not isinstance(node, ast.ClassDef))


def test_every_file_is_read_in_one_sitting_and_says_what_it_is_for() -> None:
    wrong = []
    for path in FILES:
        text, tree, name = path.read_text(), syntax_of(path), path.relative_to(REPOSITORY)
        if (lines := code_lines(text, tree)) > MAX_CODE_LINES:
            wrong.append(f"{name} has {lines} lines of code")
        if tree.body and not ast.get_docstring(tree):
            wrong.append(f"{name} does not say what it is responsible for")
        for function in functions(tree):
            lines = (function.end_lineno or 0) - function.lineno + 1 - docstring_lines(function)
            if lines > MAX_FUNCTION_LINES:
                wrong.append(f"{name}: {function.name} has {lines} lines")
    assert not wrong


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that are neither blank, nor a comment, nor part of a docstring."""
    lines = [line.strip() for line in text.splitlines()]
    documented = sum(
        sum(1 for line in docstring.splitlines() if line.strip())
        for node in (tree, *definitions(tree))
        if (docstring := ast.get_docstring(node, clean=False))
    )
    return sum(1 for line in lines if line and not line.startswith("#")) - documented


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A long docstring is no long function."""
    text = ast.get_docstring(function, clean=False)
    return len(text.splitlines()) if text else 0


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [path for path in FILES if VAGUE & set(path.stem.split("_"))]
    assert not vague


def test_every_exemption_from_a_check_has_a_code_and_a_reason() -> None:
    bare = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"#\s*(noqa|type:\s*ignore)", line)
        and not re.search(
            r"#\s*(noqa: [A-Z]+\d+(, [A-Z]+\d+)*|type: ignore\[[a-z-]+(, ?[a-z-]+)*\])(\s+-|\s+#)\s+\S", line
        )
    ]
    assert not bare


def events_said() -> Iterator[str]:
    """Iterate over the events of all log lines, each as the sources write it: its name, or its constant."""
    for path in FILES:
        if REPOSITORY / "examples" in path.parents:  # they log in their own words
            continue
        for node in ast.walk(syntax_of(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            said_of = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
            of_log = node.func.attr in EVENT_METHODS and re.search(r"(^|_)(log|logger)\b", said_of)
            if of_log or node.func.attr == "_tell":
                yield ast.unparse(node.args[0])


def test_the_name_of_an_event_stands_once_in_the_sources() -> None:
    literals = [ast.literal_eval(said) for said in events_said() if said.startswith(("'", '"'))]
    assert len(literals) > 50
    assert not {event for event in literals if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", event)}
    assert not {event for event in literals if literals.count(event) > 1 or event in EVENTS.values()}


def test_an_event_that_is_said_once_has_no_constant() -> None:
    sources = "\n".join(path.read_text() for path in FILES if path.name != "log.py")
    said = re.findall(r"\blog\.([A-Z_]+)\b", sources)
    assert not {name for name in EVENTS if said.count(name) < 2}


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
