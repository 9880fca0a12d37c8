"""The errors that a caller can branch on: exported, documented, and stable."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import textwrap
from pathlib import Path

import pytest

import wsm
from wsm import errors
from wsm.errors import (
    BadInputError,
    GroupError,
    InternalError,
    NoRoomError,
    RefusedError,
    UnfitError,
    WsmError,
)

REPOSITORY = Path(__file__).parent.parent
FAMILIES = (WsmError, RefusedError, NoRoomError, BadInputError, UnfitError, GroupError, InternalError)
ROW = re.compile(
    r"^\| `(?P<name>\w+Error)` \| `(?P<family>\w+)` \| `(?P<code>[a-z-]+)` \| (?P<attributes>[^|]*) \|",
    re.MULTILINE,
)


def public_types() -> list[type[WsmError]]:
    """Return the exported types that are no families."""
    exported = [getattr(wsm, name) for name in sorted(wsm.__all__)]
    errors = [kind for kind in exported if isinstance(kind, type) and issubclass(kind, WsmError)]
    return [kind for kind in errors if kind not in FAMILIES]


def attributes_of(kind: type[WsmError]) -> list[str]:
    """What the constructor of `kind` leaves in its context; else what it is raised with in its room."""
    if "__init__" in vars(kind):
        return made_in(textwrap.dedent(inspect.getsource(kind)), "__init__")
    room = Path(inspect.getsourcefile(kind) or "").parent
    return sorted({name for path in room.glob("*.py") for name in made_in(path.read_text(), kind.__name__)})


def made_in(source: str, name: str) -> list[str]:
    """The keywords of the calls of `name`, those of a mapping that is spread in them too."""
    if name not in source:
        return []
    tree, found = ast.parse(source), set()
    mappings = {
        target.id: {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (
            getattr(node.func, "attr", None),
            getattr(node.func, "id", None),
        ):
            for keyword in node.keywords:
                spread = isinstance(keyword.value, ast.Name) and mappings.get(keyword.value.id, set())
                found |= {keyword.arg} if keyword.arg else spread or set()
    return sorted(found - {"code"})


def test_every_public_type_is_found_with_its_family_too() -> None:
    for kind in public_types():
        assert getattr(errors, kind.__name__) is kind
    with pytest.raises(AttributeError, match="NoSuchError"):
        getattr(errors, "NoSuchError")  # noqa: B009 - the static checker knows that it is not there


def test_the_table_of_errors_is_what_the_code_says() -> None:
    text = (REPOSITORY / "docs/errors.md").read_text()
    documented = {
        row["name"]: (
            row["family"],
            row["code"],
            sorted(re.findall(r"`(\w+)`", row["attributes"])),
        )
        for row in ROW.finditer(text)
    }
    assert documented == {
        kind.__name__: (kind.__mro__[1].__name__, kind.code, attributes_of(kind)) for kind in public_types()
    }


def test_every_code_that_a_server_of_vllm_makes_is_documented() -> None:
    documented = re.findall(r"`([a-z-]+)`", (REPOSITORY / "docs/errors.md").read_text())
    found = set()
    for path in sorted((REPOSITORY / "src/wsm/vllm").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                found |= {code_in(each.value) for each in node.keywords if each.arg == "code"}
            if isinstance(node, ast.Dict):
                of_errors = zip(node.keys, node.values, strict=True)
                found |= {code_in(value) for key, value in of_errors if code_in(key) == "code"}
    found -= {None}
    assert "weights-not-whole" in found
    assert found - set(documented) == set()


def code_in(node: ast.AST | None) -> str | None:
    """The text that stands there, if one does."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_no_two_public_types_share_a_code() -> None:
    codes = [kind.code for kind in public_types()]
    assert sorted(set(codes)) == sorted(codes)


def test_an_error_keeps_code_context_and_type_in_a_pickle() -> None:
    error = wsm.CommandWithdrawnError("it is wanted no more", operation="CLEAR", request_id="7da")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line itself
    assert type(copy) is wsm.CommandWithdrawnError
    assert (copy.code, copy.context, str(copy)) == (error.code, error.context, str(error))


def test_an_error_that_a_function_makes_has_its_code_and_all_of_its_arguments_as_context() -> None:
    @errors.coded("no-such-place")
    def no_such_place(*, path: str, depth: int, fix: str = "name another", names: list[str]) -> BadInputError:
        """Its names are kept as a tuple."""
        return BadInputError(f"no {path} at {depth}; {fix}", names=tuple(names))

    error = no_such_place(path="/a", depth=2, names=["b"])
    assert (error.code, error.context) == (
        "no-such-place",
        {"path": "/a", "depth": 2, "fix": "name another", "names": ("b",)},
    )
    assert vars(error)["path"] == "/a"
    assert pickle.loads(pickle.dumps(error)).context == error.context  # noqa: S301 - made in the line itself


@pytest.mark.parametrize(
    "kind",
    [wsm.Controller, wsm.Worker, wsm.CacheParticipant, wsm.Pending, wsm.StepPermit, wsm.WsmConfig],
)
def test_public_methods_name_only_exported_errors(kind: type) -> None:
    callables = [kind, *(member for name, member in vars(kind).items() if not name.startswith("_"))]
    unknown = []
    for member in callables:
        document = inspect.getdoc(getattr(member, "fget", None) or member) or ""
        _, _, raises = document.partition("Raises\n------\n")
        for line in raises.splitlines():
            if not line:
                break
            if not line.startswith(" "):
                unknown += [
                    f"{getattr(member, '__qualname__', member)}: {name}"
                    for name in line.split(", ")
                    if name not in wsm.__all__ and name != "TimeoutError"
                ]
    assert not unknown


def test_an_error_of_a_strategy_that_is_raised_in_place_keeps_the_facts_of_its_message_as_attributes() -> (
    None
):
    families = {kind.__name__ for kind in FAMILIES}
    lacking = []
    for path in sorted((REPOSITORY / "src/wsm/strategies").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in families and node.args:
                named = {keyword.arg for keyword in node.keywords}
                says = any(isinstance(part, ast.FormattedValue) for part in ast.walk(node.args[0]))
                if says and "code" in named and not named - {"code", "unfit", "retryable"}:
                    lacking.append(f"{path}:{node.lineno}")
    assert lacking == []
