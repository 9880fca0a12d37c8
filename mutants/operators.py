"""Small faults that somebody could make in a module, made from Python's syntax.

A fault changes the text of one node, where it stands; every other line stays as it is. What only people and
type checkers read is left alone: texts, annotations, imports, lines of the log, what an error says.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_OTHER_FUNCTIONS = {"any": "all", "all": "any", "min": "max", "max": "min"}
_OF_A_PART = {"row-deleted", "rows-swapped", "operand-dropped"}
_FOR_PEOPLE = {"__all__", "__slots__", "__str__", "__repr__"}
_NAMES_OF_TEXTS = {"note", "why", "meanings", "help", "message", "problem", "remedy"}


class Fault(NamedTuple):
    """One fault of a module.

    Attributes
    ----------
    place : str
        Name of the function or class in which it is, with the classes around it; ``<module>`` outside of all.
    operator : str
        What was done.
    edits : tuple of (int, int, bytes)
        Where in the module's bytes something else stands, and what.
    text : str
        What stood in the node, on one line.
    """

    place: str
    operator: str
    edits: tuple[tuple[int, int, bytes], ...]
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the module with the fault, with as many lines as before."""
        changed = source
        for start, end, instead in sorted(self.edits, reverse=True):
            changed = changed[:start] + instead + changed[end:]
        # Behind the last edit: an expression of several lines stands in parentheses.
        end = max(end for _, end, _ in self.edits) + len(changed) - len(source)
        lost = source.count(b"\n") - changed.count(b"\n")
        return changed[:end] + b"\n" * lost + changed[end:]


def faults(module: str, source: bytes) -> dict[str, Fault]:
    """Return every fault of a module by its key, which edits elsewhere leave as it is."""
    found: dict[str, Fault] = {}
    times: Counter[str] = Counter()
    for fault in _Faults(source):
        text = hashlib.sha256(" ".join(fault.text.split()).encode()).hexdigest()[:8]
        key = f"{module}:{fault.place}:{fault.operator}:{text}"
        found[f"{key}:{times[key]}"] = fault
        times[key] += 1
    return found


def is_fault(fault: Fault, source: bytes) -> bool:
    """Whether a module is Python with a fault, and another program than without."""
    try:
        return ast.dump(ast.parse(fault.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Faults:
    """Iterates over the faults of one module, from its first line to its last."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def __iter__(self) -> Iterator[Fault]:
        yield from self._within(ast.parse(self._source), ())

    def _within(self, node: ast.AST, places: tuple[str, ...]) -> Iterator[Fault]:
        for operator, *edits in self._changes(node, in_function=_is_in_function(places)):
            start, end, _ = edits[0]  # of a table the row alone, for others change
            text = self._source[start:end].decode() if operator in _OF_A_PART else self._text(node)
            yield Fault(".".join(places) or "<module>", operator, tuple(edits), text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            places = (*places, node.name)
        for child in _read_by_python(node):
            yield from self._within(child, places)

    def _changes(self, node: ast.AST, *, in_function: bool) -> Iterator[tuple[Any, ...]]:
        """Iterate over an operator and the edits that it makes of a node itself."""
        for kind, changes in _CHANGES.items():
            if isinstance(node, kind):
                yield from changes(self, node)
        if isinstance(node, ast.Raise | ast.AugAssign) or _is_effect(node):
            yield "statement-deleted", (*self._range(node), b"pass")
        if isinstance(node, ast.Tuple | ast.List) and not in_function:
            for one, other in pairwise(node.elts):
                if isinstance(one, ast.Call | ast.Tuple):
                    yield "rows-swapped", *self._swapped(one, other)

    def _comparison(self, node: ast.Compare) -> Iterator[tuple[Any, ...]]:
        for operator, (left, right) in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
            yield "comparison", self._between(left, right, *_COMPARISONS[type(operator)])

    def _operands(self, node: ast.BoolOp) -> Iterator[tuple[Any, ...]]:
        word = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield "and-or", *(self._between(*two, rf"\b{word[0]}\b", word[1]) for two in pairwise(node.values))
        yield from self._without_one([*map(self._range, node.values)], "operand-dropped")

    def _arithmetic(self, node: ast.BinOp) -> Iterator[tuple[Any, ...]]:
        if type(node.op) in _ARITHMETIC and not _is_text(node):
            yield "arithmetic", self._between(node.left, node.right, *_ARITHMETIC[type(node.op)])

    def _not(self, node: ast.UnaryOp) -> Iterator[tuple[Any, ...]]:
        if isinstance(node.op, ast.Not):
            start, _ = self._range(node)
            yield "not-dropped", (start, start + len(b"not"), b"")

    def _constant(self, node: ast.Constant) -> Iterator[tuple[Any, ...]]:
        if isinstance(node.value, int):
            other = (not node.value) if isinstance(node.value, bool) else node.value + 1
            yield "constant", (*self._range(node), str(other).encode())

    def _condition(self, node: ast.If | ast.IfExp | ast.While) -> Iterator[tuple[Any, ...]]:
        if not isinstance(node, ast.While):
            yield "condition-true", (*self._range(node.test), b"True")
        yield "condition-false", (*self._range(node.test), b"False")

    def _filter(self, node: ast.comprehension) -> Iterator[tuple[Any, ...]]:
        for number, condition in enumerate(node.ifs):
            yield f"filter-dropped-{number}", (*self._range(condition), b"True")

    def _return(self, node: ast.Return) -> Iterator[tuple[Any, ...]]:
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return
        start, end = self._range(node.value)
        yield "returns-none", (start, end, b"None")
        if isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield "returns-other", (start, start, b"not ("), (end, end, b")")

    def _call(self, node: ast.Call) -> Iterator[tuple[Any, ...]]:
        if isinstance(node.func, ast.Name) and node.func.id in _OTHER_FUNCTIONS:
            yield "other-function", (*self._range(node.func), _OTHER_FUNCTIONS[node.func.id].encode())
        if len(node.args) > 1 and all(isinstance(each, ast.Name | ast.Attribute) for each in node.args[:2]):
            yield "arguments-swapped", *self._swapped(*node.args[:2])
        before = [*node.args[-1:], *node.keywords]
        for keyword in node.keywords:
            previous = before[before.index(keyword) - 1] if before[0] is not keyword else None
            start, end = self._range(keyword)
            yield (
                f"without-{keyword.arg}",
                (start if previous is None else self._range(previous)[1], end, b""),
            )

    def _row(self, node: ast.Tuple | ast.List | ast.Set) -> Iterator[tuple[Any, ...]]:
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            yield from self._without_one([*map(self._range, node.elts)], "row-deleted")

    def _dictionary(self, node: ast.Dict) -> Iterator[tuple[Any, ...]]:
        rows = zip(node.keys, node.values, strict=True)
        ranges = [(self._range(key)[0], self._range(value)[1]) for key, value in rows if key]
        if not _is_sentence(node.values[-1] if node.values else node):
            yield from self._without_one(ranges, "row-deleted")

    def _slice(self, node: ast.Slice) -> Iterator[tuple[Any, ...]]:
        for name, bound in (("lower", node.lower), ("upper", node.upper)):
            if bound is not None:
                yield f"without-{name}-bound", (*self._range(bound), b"")

    def _handler(self, node: ast.ExceptHandler) -> Iterator[tuple[Any, ...]]:
        if isinstance(node.type, ast.Tuple):
            yield "except-narrowed", (*self._range(node.type), self._text(node.type.elts[0]).encode())
        elif node.type is not None:
            yield "except-narrowed", (*self._range(node.type), b"ZeroDivisionError")

    def _jump(self, node: ast.Break | ast.Continue) -> Iterator[tuple[Any, ...]]:
        yield "other-jump", (*self._range(node), b"continue" if isinstance(node, ast.Break) else b"break")

    def _without_one(self, ranges: list[tuple[int, int]], operator: str) -> Iterator[tuple[Any, ...]]:
        for (start, _), (following, _) in pairwise(ranges):
            yield operator, (start, following, b"")
        if len(ranges) > 1:
            alone = len(ranges) == 2 and not self._source[ranges[-1][1] :].lstrip().startswith(b",")
            comma = b"," if alone and operator == "row-deleted" else b""  # else it is no tuple
            yield operator, (ranges[-2][1], ranges[-1][1], comma)

    def _swapped(self, one: ast.AST, other: ast.AST) -> tuple[tuple[int, int, bytes], ...]:
        first, second = self._range(one), self._range(other)
        return (*first, self._source[slice(*second)]), (*second, self._source[slice(*first)])

    def _between(self, left: ast.expr, right: ast.expr, word: str, instead: str) -> tuple[int, int, bytes]:
        start, end = self._range(left)[1], self._range(right)[0]
        return start, end, re.sub(word.encode(), instead.encode(), self._source[start:end], count=1)

    def _range(self, node: Any) -> tuple[int, int]:
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.AST) -> str:
        if isinstance(node, ast.If | ast.While):  # not what depends on it
            node = node.test
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            node = node.type
        return (
            self._source[slice(*self._range(node))].decode() if hasattr(node, "lineno") else ast.unparse(node)
        )


_CHANGES: dict[Any, Any] = {
    ast.Compare: _Faults._comparison,
    ast.BoolOp: _Faults._operands,
    ast.BinOp: _Faults._arithmetic,
    ast.UnaryOp: _Faults._not,
    ast.Constant: _Faults._constant,
    ast.If | ast.IfExp | ast.While: _Faults._condition,
    ast.comprehension: _Faults._filter,
    ast.Return: _Faults._return,
    ast.Call: _Faults._call,
    ast.Tuple | ast.List | ast.Set: _Faults._row,
    ast.Dict: _Faults._dictionary,
    ast.Slice: _Faults._slice,
    ast.ExceptHandler: _Faults._handler,
    ast.Break | ast.Continue: _Faults._jump,
}


def _read_by_python(node: ast.AST) -> Iterator[ast.AST]:
    """Iterate over the children of a node that change what a program does."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children: list[ast.AST] = [] if node.name in _FOR_PEOPLE else [node.args, *node.body]
    elif isinstance(node, ast.ClassDef):
        children = list(node.body)
    elif isinstance(node, ast.Raise):
        children = []
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value is not None else []
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        if not _is_for_people(child):
            yield child


def _is_for_people(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_log(node.value)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name) and node.targets[0].id in _FOR_PEOPLE
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.arg | ast.Import | ast.ImportFrom | ast.JoinedStr) or (
        isinstance(node, ast.keyword) and node.arg in _NAMES_OF_TEXTS
    )


def _is_log(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and re.search(r"(^|[._])log(ger)?\b", ast.unparse(node.func)) is not None
    )


def _is_effect(node: ast.AST) -> bool:
    """Whether a statement does something that no name of a function keeps."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _is_sentence(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def _is_in_function(places: tuple[str, ...]) -> bool:
    return bool(places) and not places[-1][:1].isupper()
