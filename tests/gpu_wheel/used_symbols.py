"""Which paddle symbols the library uses, read off its source: the table cannot fall behind the code.

Read is every module under ``src/wsm`` and ``examples`` that speaks of paddle, and every test that only a GPU
can run. Found are

* chains of attributes that begin at paddle: at a name that an import bound to it, ``sys.modules["paddle"]``,
  or a variable, an attribute of ``self`` or a function of the module that stands for a part of it;
* names that are asked for there with ``getattr``;
* attributes of other objects that a class of the installed paddle has and everyday objects lack
  (:mod:`tests.gpu_wheel.of_objects`), or that the library does not define and are private or asked for with
  ``getattr``.

Knows nothing of builds and of what they lack.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import wsm
from tests.gpu_wheel.of_objects import EVERYDAY, OF_OBJECTS

SOURCE = Path(wsm.__path__[0])
TESTS = Path(__file__).parent.parent
EXAMPLES = TESTS.parent / "examples"


@dataclass(frozen=True)
class Use:
    """A symbol, where it is used, and the calls of it.

    Parameters
    ----------
    symbol : str
        From paddle on: ``paddle.Tensor.copy_``.
    file : str
        Relative to the library, to the repository if it is an example's, or to the tests.
    line : int
        The line.
    call : tuple or None
        Number of positional arguments and names of the others; None if it is not called, or not countably.
    of_object : bool
        Whether it is used on an object of the class that the symbol names.
    """

    symbol: str
    file: str
    line: int
    call: tuple[int, tuple[str, ...]] | None
    of_object: bool = False

    @property
    def name(self) -> str:
        """The last part of the symbol."""
        return self.symbol.rpartition(".")[2]


def uses(attributes: frozenset[str]) -> list[Use]:
    """Return every use in the library, in the examples and in the GPU tests.

    Parameters
    ----------
    attributes : frozenset of str
        What objects of the installed paddle can do.
    """
    folders = ((SOURCE, SOURCE), (EXAMPLES.parent, EXAMPLES), (TESTS, TESTS / "gpu"))
    paths = [(root, path) for root, folder in folders for path in sorted(folder.rglob("*.py"))]
    paths = [
        (root, path) for root, path in paths if SOURCE / "torch" not in path.parents
    ]  # of torch's objects
    trees = {
        str(path.relative_to(root)): (text, ast.parse(text))
        for root, path in paths
        if (text := path.read_text(encoding="utf-8"))
    }
    ours = frozenset(name for _, tree in trees.values() for name in _defined(tree))
    return [
        use
        for file, (text, tree) in trees.items()
        if "paddle" in text
        for use in Reading(file, tree, attributes, ours).uses()
    ]


def _defined(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives to functions, classes, variables, and attributes of objects."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(name, ast.Store()) | ast.Attribute(_, name, ast.Store()):
                yield name
            case ast.Assign([ast.Name("__slots__")], value):
                yield from (text.value for text in ast.walk(value) if isinstance(text, ast.Constant))


class Reading:
    """One module.

    Parameters
    ----------
    file : str
        What it is called in the uses.
    tree : ast.Module
        The module.
    attributes : frozenset of str
        What objects of the installed paddle can do.
    ours : frozenset of str
        Every name that the library defines.
    """

    def __init__(self, file: str, tree: ast.Module, attributes: frozenset[str], ours: frozenset[str]) -> None:
        self._file = file
        self._tree = tree
        self._attributes = attributes
        self._ours = ours
        self._others: set[str] = set()
        #: What stands for a part of paddle: source text -> symbol. A parameter of that name is paddle, too.
        self._stands_for = {"paddle": "paddle", "sys.modules['paddle']": "paddle"}
        self._learn_imports()
        while self._learn():
            pass
        self._calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}

    def uses(self) -> Iterator[Use]:
        """Yield every use, chains by their longest form."""
        inner = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self._tree):
            match node:
                case ast.ImportFrom() if _is_paddle(node.module):
                    for alias in node.names:
                        yield Use(f"{node.module}.{alias.name}", self._file, node.lineno, None)
                case ast.Attribute() | ast.Call(
                    ast.Name("getattr" | "hasattr"), [_, ast.Constant(str()), *_]
                ):
                    symbol = self._symbol(node)
                    if symbol is not None and id(node) not in inner:
                        yield Use(symbol, self._file, node.lineno, self._call(node))
                    elif symbol is None and self._is_of_objects(node):
                        name = _last(node)
                        symbol = f"{OF_OBJECTS.get(name, 'of what')}.{name}"
                        yield Use(symbol, self._file, node.lineno, self._call(node), of_object=True)

    def _learn_imports(self) -> None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if not _is_paddle(alias.name):
                        self._others.add(alias.asname or alias.name.partition(".")[0])
                    elif alias.asname:
                        self._stands_for[alias.asname] = alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if _is_paddle(node.module):
                        self._stands_for[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    else:
                        self._others.add(alias.asname or alias.name)

    def _learn(self) -> bool:
        """Follow assignments and returned values by one step; whether anything new stands for paddle."""
        before = len(self._stands_for)
        for node in ast.walk(self._tree):
            match node:
                case ast.Assign([(ast.Name() | ast.Attribute(ast.Name("self"))) as target], value):
                    self._learn_that(ast.unparse(target), value)
                case ast.AnnAssign(
                    (ast.Name() | ast.Attribute(ast.Name("self"))) as target, _, ast.expr() as value
                ):
                    self._learn_that(ast.unparse(target), value)
                case ast.FunctionDef(name):
                    for inside in ast.walk(node):
                        if isinstance(inside, ast.Return) and inside.value is not None:
                            self._learn_that(f"{name}()", inside.value)
        return len(self._stands_for) > before

    def _learn_that(self, text: str, value: ast.expr) -> None:
        symbol = self._symbol(value)
        if symbol is not None:
            self._stands_for.setdefault(text, symbol)

    def _symbol(self, node: ast.expr) -> str | None:
        """Return what an expression names of paddle, if it can be told."""
        match node:
            case ast.Attribute(owner, name) if ast.unparse(node) not in self._stands_for:
                return self._part(owner, name)
            case ast.Call(ast.Name("getattr" | "hasattr"), [owner, ast.Constant(str(name)), *_]):
                return self._part(owner, name)
            case ast.Call(ast.Name(name)):
                return self._stands_for.get(f"{name}()")
            case ast.BoolOp(_, values):
                return next(filter(None, map(self._symbol, values)), None)
            case ast.IfExp(_, one, other):
                return self._symbol(one) or self._symbol(other)
        return self._stands_for.get(ast.unparse(node))

    def _part(self, owner: ast.expr, name: str) -> str | None:
        symbol = self._symbol(owner)
        return None if symbol is None else f"{symbol}.{name}"

    def _is_of_objects(self, node: ast.Attribute | ast.Call) -> bool:
        owner = node.value if isinstance(node, ast.Attribute) else node.args[0]
        name = _last(node)
        if name in EVERYDAY or name.startswith("__"):
            return False
        if isinstance(owner, ast.Name) and owner.id in {"self", "cls", *self._others}:
            return False
        foreign = name not in self._ours and (name.startswith("_") or isinstance(node, ast.Call))
        return foreign or name in self._attributes or name in OF_OBJECTS

    def _call(self, node: ast.expr) -> tuple[int, tuple[str, ...]] | None:
        call = self._calls.get(id(node))
        if call is None or any(isinstance(argument, ast.Starred) for argument in call.args):
            return None
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return len(call.args), tuple(str(keyword.arg) for keyword in call.keywords)


def _is_paddle(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "paddle"


def _last(node: ast.Attribute | ast.Call) -> str:
    """Return the name that is asked of an object, in either way."""
    if isinstance(node, ast.Attribute):
        return node.attr
    asked = node.args[1]
    assert isinstance(asked, ast.Constant)
    return str(asked.value)
