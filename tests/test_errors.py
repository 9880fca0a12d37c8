"""The errors that a caller can branch on: exported, documented, and stable."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
import textwrap
from pathlib import Path

import pytest

import wsm
from wsm import errors
from wsm.errors import BadInputError, GroupError, InternalError, NoRoomError, RefusedError, WsmError

REPOSITORY = Path(__file__).parent.parent
FAMILIES = (WsmError, RefusedError, NoRoomError, BadInputError, GroupError, InternalError)
ROW = re.compile(
    r"^\| `(?P<name>\w+Error)` \| `(?P<family>\w+)` \| `(?P<code>[a-z-]+)` \| (?P<attributes>[^|]*) \|",
    re.MULTILINE,
)


def public_types() -> list[type[WsmError]]:
    return [getattr(errors, name) for name in sorted(errors.PUBLIC)]


def attributes_of(kind: type[WsmError]) -> list[str]:
    """What the constructor of `kind` leaves in its context."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "__init__"
            and node.keywords
        ):
            return sorted(keyword.arg for keyword in node.keywords if keyword.arg not in {None, "code"})  # type: ignore[type-var] # None is left out
    return []


def test_every_public_type_is_exported_by_the_library_and_by_its_errors() -> None:
    for kind in (*FAMILIES, *public_types()):
        assert getattr(wsm, kind.__name__) is kind
        assert {kind.__name__} <= set(wsm.__all__) & set(errors.__all__)
    assert set(errors.PUBLIC) == set(errors.__all__) - {kind.__name__ for kind in FAMILIES} - {
        "PUBLIC",
        "error_name",
    }


def test_a_name_that_is_no_error_is_answered_like_any_other_module_does() -> None:
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


def test_no_two_public_types_share_a_code() -> None:
    codes = [kind.code for kind in public_types()]
    assert sorted(set(codes)) == sorted(codes)


def test_an_error_keeps_code_context_and_type_in_a_pickle() -> None:
    error = wsm.CommandWithdrawnError(operation="CLEAR", request_id="7da")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line itself
    assert type(copy) is wsm.CommandWithdrawnError
    assert (copy.code, copy.context, str(copy)) == (error.code, error.context, str(error))


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


def test_the_module_that_defines_a_public_type_is_the_one_that_is_named() -> None:
    for name, module in errors.PUBLIC.items():
        assert hasattr(importlib.import_module(module), name)
