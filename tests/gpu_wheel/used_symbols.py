"""Which paddle symbols the library uses, read off its source: the table cannot fall behind the code.

Found in every module under ``src/wsm``, and in the tests that only a GPU can run: chains of attributes that
begin at a name that an import bound to paddle, or at an expression that stands for a part of it
(:data:`STAND_INS`); names that are asked for with ``hasattr`` and ``getattr`` before anything begins
(:data:`ASKED_FOR`); and attributes of other objects that a tensor of the installed build has and everyday
objects lack, or that are private and used in a backend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import wsm

SOURCE = Path(wsm.__path__[0])
GPU_TESTS = Path(__file__).parent.parent / "gpu"

#: Expressions that stand for a paddle module or class, and which: by the file that uses them.
STAND_INS = {
    "actions/backends/paddle_memory.py": {"self._cuda": "paddle.device.cuda"},
    "actions/backends/device_groups.py": {"self._distributed": "paddle.distributed"},
    "actions/backends/paddle_groups.py": {"_core()": "paddle.base.core"},
    "strategies/ipc/pickled_metas.py": {
        "_paddle(path)": "paddle",
        "_paddle(file)": "paddle",
        "_dense_tensor(paddle)": "paddle.base.core.LoDTensor",
        "_dense_tensor(_paddle(file))": "paddle.base.core.LoDTensor",
    },
}

#: Names of calls that are asked for by name before anything begins, and where they are looked for.
ASKED_FOR = {"actions/backends/device_groups.py": ("_CALLS", "paddle.distributed")}

#: Attributes of paddle's tensors that arrays, sets and objects of our own have as well; where they are
#: called on tensors, the suite runs them.
EVERYDAY = frozenset(
    (
        "T",
        "add",
        "all",
        "astype",
        "clear",
        "clip",
        "copy",
        "data",
        "dtype",
        "exp",
        "fill",
        "flatten",
        "item",
        "max",
        "mean",
        "min",
        "name",
        "numpy",
        "prod",
        "rank",
        "ravel",
        "reshape",
        "rows",
        "shape",
        "size",
        "split",
        "squeeze",
        "std",
        "sum",
        "take",
        "tolist",
        "transpose",
        "type",
        "unsqueeze",
        "value",
        "values",
    )
)


@dataclass(frozen=True)
class Use:
    """A symbol, where it is used, and the calls of it: numbers of positional arguments, names of others."""

    symbol: str
    file: str
    line: int
    call: tuple[int, tuple[str, ...]] | None


def uses(tensor_attributes: frozenset[str]) -> list[Use]:
    """Return every use in the library and in the GPU tests.

    Parameters
    ----------
    tensor_attributes : frozenset of str
        What a tensor of the installed build, or of another known one, can do; such an attribute is reported
        as ``Tensor.NAME``.
    """
    found: list[Use] = []
    for root, path in [(SOURCE, path) for path in sorted(SOURCE.rglob("*.py"))] + [
        (GPU_TESTS.parent, path) for path in sorted(GPU_TESTS.glob("*.py"))
    ]:
        text = path.read_text(encoding="utf-8")
        if "paddle" in text:
            file = str(path.relative_to(root))
            found += _Reading(file, ast.parse(text), tensor_attributes).uses()
    return found


class _Reading:
    """One module."""

    def __init__(self, file: str, tree: ast.Module, tensor_attributes: frozenset[str]) -> None:
        self._file = file
        self._tree = tree
        self._tensor_attributes = tensor_attributes
        self._names = dict(self._imported()) | STAND_INS.get(file, {})
        self._calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}

    def uses(self) -> Iterator[Use]:
        inner = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        touches_paddle = bool(self._names) or "actions/backends" in self._file
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "paddle":
                for alias in node.names:
                    yield Use(f"{node.module}.{alias.name}", self._file, node.lineno, None)
            elif isinstance(node, ast.Attribute) and id(node) not in inner:
                symbol = self._resolved(node)
                if symbol is not None:
                    yield Use(symbol, self._file, node.lineno, self._call(node))
            if touches_paddle and isinstance(node, ast.Attribute) and self._is_of_tensors(node):
                yield Use(f"Tensor.{node.attr}", self._file, node.lineno, self._call(node))
        yield from self._asked_for()

    def _imported(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == "paddle":
                        yield (alias.asname or "paddle"), (alias.name if alias.asname else "paddle")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "paddle":
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"

    def _resolved(self, node: ast.expr) -> str | None:
        stands_for = self._names.get(ast.unparse(node))
        if stands_for is not None:
            return stands_for
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def _is_of_tensors(self, node: ast.Attribute) -> bool:
        on_our_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "math", "np"}
        if on_our_own or node.attr in EVERYDAY or self._resolved(node) is not None:
            return False
        private = (
            self._file.startswith("actions/backends/paddle_") and node.attr[0] == "_" != node.attr[1]
        ) and isinstance(node.value, ast.Name)
        return private or node.attr in self._tensor_attributes

    def _call(self, node: ast.Attribute) -> tuple[int, tuple[str, ...]] | None:
        call = self._calls.get(id(node))
        if call is None or any(isinstance(argument, ast.Starred) for argument in call.args):
            return None
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return len(call.args), tuple(str(keyword.arg) for keyword in call.keywords)

    def _asked_for(self) -> Iterable[Use]:
        for call in self._calls.values():
            match call:
                case ast.Call(ast.Name("getattr" | "hasattr"), [owner, ast.Constant(str(name)), *_]):
                    symbol = self._resolved(owner)
                    if symbol is not None:
                        yield Use(f"{symbol}.{name}", self._file, call.lineno, None)
        constant, owner = ASKED_FOR.get(self._file, ("", ""))
        for node in self._tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == constant:
                for name in ast.literal_eval(node.value):
                    yield Use(f"{owner}.{name}", self._file, node.lineno, None)
