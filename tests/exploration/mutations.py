"""Small faults that somebody could make in a module: every one of them as source text, one at a time.

Knows Python's syntax and nothing of what the modules are for. Texts that people read, annotations and imports
are left as they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ANY_OR_ALL = {"any": "all", "all": "any"}

#: Collections of fewer elements than that are read as pairs or single things, not as sets of cases.
_FEWEST_CASES = 2


class Mutation(NamedTuple):
    """One fault.

    Attributes
    ----------
    line : int
        Where, in the source that it was made from.
    what : str
        What was done to what stood there.
    source : str
        The whole module with it.
    """

    line: int
    what: str
    source: str


#: Changes a copy of a node in place, or returns what is to stand in its place.
Change = Callable[[ast.AST], ast.AST | None]


def mutations(source: str) -> Iterator[Mutation]:
    """Iterate over every fault that can be made in a module."""
    tree = ast.parse(source)
    kept = _left_alone(tree)
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in kept:
            continue
        for what, change in _changes(node):
            yield Mutation(getattr(node, "lineno", 0), what, _changed(tree, number, change))


def _left_alone(tree: ast.Module) -> set[int]:
    """Return what only people and type checkers read, by identity: what is said in errors, annotations."""
    found: set[int] = set()

    def leave(node: ast.AST | None) -> None:
        if node is not None:
            found.update(id(each) for each in ast.walk(node))

    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            leave(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            leave(node.returns)
        elif isinstance(node, ast.Raise):
            leave(node.exc)
        elif isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                leave(decorator)
        elif isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)) or _is_only_said(node):
            leave(node)
    return found


def _is_only_said(node: ast.AST) -> bool:
    """Whether a node is a docstring, or an argument that is for people."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.keyword) and node.arg in ("note", "why", "meanings")


def _changed(tree: ast.Module, number: int, change: Change) -> str:
    changed = copy.deepcopy(tree)
    wanted = next(node for place, node in enumerate(ast.walk(changed)) if place == number)
    instead = change(wanted)
    if instead is not None:
        _Replacing(wanted, instead).visit(changed)
    return ast.unparse(ast.fix_missing_locations(changed))


class _Replacing(ast.NodeTransformer):
    def __init__(self, wanted: ast.AST, instead: ast.AST) -> None:
        self._wanted, self._instead = wanted, instead

    def visit(self, node: ast.AST) -> ast.AST:
        return self._instead if node is self._wanted else self.generic_visit(node)


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Iterate over what can be done to one node, with a few words for each."""
    for kind, changes_of in _CHANGES.items():
        if isinstance(node, kind):
            yield from changes_of(node)
    if isinstance(node, (ast.If, ast.Raise, ast.Assign)):
        yield f"dropped: {_said(node)}", lambda _wanted: ast.Pass()


def _of_comparison(node: ast.Compare) -> Iterator[tuple[str, Change]]:
    for place, operator in enumerate(node.ops):
        other = _SWAPPED[type(operator)]

        def swap(wanted: ast.AST, place: int = place, other: type[ast.cmpop] = other) -> None:
            wanted.ops[place] = other()

        yield f"{other.__name__}: {_said(node)}", swap


def _of_operands(node: ast.BoolOp) -> Iterator[tuple[str, Change]]:
    for place, value in enumerate(node.values):
        yield f"without {_said(value)!r}: {_said(node)}", _without("values", place)


def _of_condition(node: ast.If | ast.IfExp) -> Iterator[tuple[str, Change]]:
    def negate(wanted: ast.AST) -> None:
        wanted.test = ast.UnaryOp(ast.Not(), wanted.test)

    yield f"negated: {_said(node.test)}", negate


def _of_filter(node: ast.comprehension) -> Iterator[tuple[str, Change]]:
    for place, condition in enumerate(node.ifs):
        yield f"without if {_said(condition)}", _without("ifs", place)


def _of_not(node: ast.UnaryOp) -> Iterator[tuple[str, Change]]:
    if isinstance(node.op, ast.Not):
        yield f"not dropped: {_said(node)}", lambda wanted: wanted.operand


def _of_sum(node: ast.BinOp) -> Iterator[tuple[str, Change]]:
    def turn(wanted: ast.AST) -> None:
        wanted.op = ast.Sub() if isinstance(wanted.op, ast.Add) else ast.Add()

    if isinstance(node.op, (ast.Add, ast.Sub)):
        yield f"other sign: {_said(node)}", turn


def _of_constant(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    if type(node.value) in (bool, int):
        other = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} becomes {other}", lambda _wanted: ast.Constant(other)


def _of_call(node: ast.Call) -> Iterator[tuple[str, Change]]:
    if isinstance(node.func, ast.Name) and node.func.id in _ANY_OR_ALL:
        other = _ANY_OR_ALL[node.func.id]

        def swap(wanted: ast.AST) -> None:
            wanted.func.id = other

        yield f"{other}: {_said(node)}", swap
    for place, keyword in enumerate(node.keywords):
        yield f"without {keyword.arg}=: {_said(node)}", _without("keywords", place)


def _of_cases(node: ast.Tuple | ast.Set) -> Iterator[tuple[str, Change]]:
    if len(node.elts) >= _FEWEST_CASES and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        for place, value in enumerate(node.elts):
            yield f"without {_said(value)!r}", _without("elts", place)


def _of_table(node: ast.Dict) -> Iterator[tuple[str, Change]]:
    for place, key in enumerate(node.keys):
        yield f"without {_said(key)!r}", _without_key(place)


def _of_function(node: ast.FunctionDef) -> Iterator[tuple[str, Change]]:
    answers = {"bool": (True, False), "int | None": (None,)}
    for value in answers.get(_said(node.returns), ()):

        def answer(wanted: ast.AST, value: bool | None = value) -> None:
            wanted.body = [ast.Return(ast.Constant(value))]

        yield f"{node.name}() is always {value}", answer


def _without(field: str, place: int) -> Change:
    def drop(wanted: ast.AST) -> ast.AST | None:
        parts = getattr(wanted, field)
        del parts[place]
        return parts[0] if isinstance(wanted, ast.BoolOp) and len(parts) == 1 else None

    return drop


def _without_key(place: int) -> Change:
    def drop(wanted: ast.AST) -> None:
        del wanted.keys[place], wanted.values[place]

    return drop


def _said(node: ast.AST | None) -> str:
    return "" if node is None else " ".join(ast.unparse(node).split())[:90]


_CHANGES: dict[Any, Callable[[Any], Iterator[tuple[str, Change]]]] = {
    ast.Compare: _of_comparison,
    ast.BoolOp: _of_operands,
    (ast.If, ast.IfExp): _of_condition,
    ast.comprehension: _of_filter,
    ast.UnaryOp: _of_not,
    ast.BinOp: _of_sum,
    ast.Constant: _of_constant,
    ast.Call: _of_call,
    (ast.Tuple, ast.Set): _of_cases,
    ast.Dict: _of_table,
    ast.FunctionDef: _of_function,
}
