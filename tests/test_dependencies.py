"""What is imported is declared, what is declared is imported; only what is made of an extra needs it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import pytest

from tests.extras import MADE_OF, PACKAGES
from tests.sources import SOURCE, modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
#: Extras that bring tools, not packages that the library imports.
FOR_TOOLS = {"dev", "fuzz", "ray", "site"}


def is_left_out(node: ast.stmt, *, at_once: bool) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def imports(nodes: list[ast.stmt], *, at_once: bool) -> Iterator[str]:
    """Names that are imported, never those for types alone; `at_once` leaves out what waits in a function."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not is_left_out(node, at_once=at_once):
            inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            handlers = [each for handler in getattr(node, "handlers", []) for each in handler.body]
            yield from imports([*inner, *handlers], at_once=at_once)


def package_of(name: str) -> str:
    return name.partition(".")[0]


def foreign(module: str, *, at_once: bool) -> set[str]:
    """Packages of others that a module imports."""
    names = {package_of(name) for name in imports(modules()[module].body, at_once=at_once)}
    return names - sys.stdlib_module_names - {"wsm", "wsm_entry"}  # the wheel holds both


def distributions(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", each).group().lower() for each in requirements}


def test_every_package_that_is_imported_is_declared_for_the_core_or_an_extra():
    imported = {package for module in modules() for package in foreign(module, at_once=False)}
    assert imported == set(PACKAGES), "say in tests/extras.py what brings it"
    core = distributions(PROJECT["dependencies"])
    for name, package in PACKAGES.items():
        places = [distributions(PROJECT["optional-dependencies"][extra]) for extra in package.extras] or [
            core
        ]
        for declared in places:
            assert declared & set(package.distributions), f"{name} is not declared in pyproject.toml"


def test_every_dependency_that_is_declared_is_imported():
    known = {name for package in PACKAGES.values() for name in package.distributions}
    assert distributions(PROJECT["dependencies"]) <= known
    extras = PROJECT["optional-dependencies"]
    bringing = {extra for extra, wanted in extras.items() if wanted}
    assert {extra for package in PACKAGES.values() for extra in package.extras} == bringing - FOR_TOOLS
    for extra in set(extras) - FOR_TOOLS:
        assert distributions(extras[extra]) <= known | {"setuptools"}, extra  # which paddle imports


def test_the_page_on_installing_names_every_extra():
    page = (SOURCE.parents[1] / "docs" / "install.md").read_text()
    named = set(re.findall(r"^pip install '\.\[([\w-]+)\]'", page, re.MULTILINE))
    assert named == set(PROJECT["optional-dependencies"]) - FOR_TOOLS


@pytest.mark.parametrize("package", [name for name, package in PACKAGES.items() if package.extras])
def test_only_modules_that_are_made_of_an_extra_need_it_when_they_are_imported(package):
    needing = {module for module in modules() if package in foreign(module, at_once=True)}
    while True:
        more = {
            module
            for module, tree in modules().items()
            if needing & set(imports(tree.body, at_once=True))
            or any(module.startswith(f"{name}.") for name in needing)
        }
        if more <= needing:
            break
        needing |= more
    assert needing == set(MADE_OF.get(package, ()))
