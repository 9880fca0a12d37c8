"""Which status answers which error, for every type and every code that wsm has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import wsm
from wsm import errors
from wsm.errors import PUBLIC, BadInputError, GroupError, InternalError, RefusedError, WsmError
from wsm.http.answers import UNFIT_WEIGHTS, error_mapping, error_of, failed, status_of
from wsm.http.native import FIELDS

SOURCE = Path(wsm.__path__[0])
DOCUMENTED = (SOURCE.parents[1] / "docs" / "errors.md").read_text()

STATUSES = {
    "ActionOverdueError": 500,
    "RankFailedError": 500,
    "FlipFailedError": 500,
    "RestartLimitError": 500,
    "CommandOpenError": 503,
    "RoleBusyError": 503,
    "RankLostError": 503,
    "EpochEndedError": 503,
    "CommandTimeoutError": 504,
    "UnsettledError": 504,
    "SegmentMissingError": 503,
    "SegmentTruncatedError": 500,
    "LoadCancelledError": 500,
    "PostconditionError": 500,
    "PeerDiedError": 500,
    "PeerFailedError": 500,
    "PeerSilentError": 500,
    "ConfigurationError": 400,
    **dict.fromkeys(
        [
            "DeltaBaseError",
            "DigestMismatchError",
            "SnapshotNotFoundError",
            "UnreadableFileError",
            "VersionMismatchError",
        ],
        422,
    ),
    **dict.fromkeys(
        [
            *("CommandRefusedError", "CommandWithdrawnError", "EpochUsedError", "ForeignPathError"),
            *("MixedGroupError", "NotServingError", "PreconditionError", "PublisherBusyError"),
            *("SlotTakenError", "StorageError", "TensorReleasedError", "VersionExistsError"),
        ],
        409,
    ),
}


def made(kind: type[WsmError], **context) -> WsmError:
    error = kind.__new__(kind)
    WsmError.__init__(error, "it happened", **context)
    return error


def test_every_exported_type_has_a_status_and_comes_back_as_itself() -> None:
    assert set(STATUSES) == set(PUBLIC)
    assert set(PUBLIC) == set(re.findall(r"^\| `(\w+)` \| `\w+` \| `[\w-]+` \|", DOCUMENTED, re.MULTILINE))
    for name, status in STATUSES.items():
        error = made(getattr(errors, name), rank=1, ranks=(0, 1))
        answer = failed(error, request_id="r")
        assert answer.status == status, name
        assert ("Retry-After" in answer.headers) == (status == 503)
        back = error_of(answer.body, status=status)
        assert (type(back), back.code, str(back), back.rank) == (type(error), error.code, "it happened", 1)


def test_a_family_without_a_code_of_its_own_is_answered_by_its_family() -> None:
    by_family = {BadInputError: 400, RefusedError: 409, GroupError: 500, InternalError: 500}
    for kind, status in by_family.items():
        assert status_of(kind("x", code="some-other")) == status
    assert status_of(ValueError("ours")) == 500
    assert error_mapping(ValueError("ours"))["message"].startswith("the server met an error of its own")


@pytest.mark.parametrize("code", sorted(UNFIT_WEIGHTS))
def test_unfit_weights_are_422_also_when_ranks_found_them(code: str) -> None:
    assert status_of(made(errors.RankFailedError, error=code)) == 422
    assert status_of(made(errors.CommandRefusedError, error=code)) == 422


def codes_of(package: str, base: str) -> set[str]:
    """Codes of errors of one family that a package makes, or defines as types."""
    found = set()
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and base in {ast.unparse(each) for each in node.bases}:
                found.add(re.sub(r"(?<=[a-z])(?=[A-Z])", "-", node.name.removesuffix("Error")).lower())
            if isinstance(node, ast.Call) and ast.unparse(node.func) == base:
                found |= {
                    each.value.value
                    for each in node.keywords
                    if each.arg == "code" and isinstance(each.value, ast.Constant)
                }
    return found


def test_every_code_that_strategies_give_bad_input_is_known_as_unfit_or_as_configuration() -> None:
    of_configuration = {
        *("bad-address", "bad-engine-settings", "bad-transport-option", "not-astrategy"),
        *("transport-unknown", "unknown-strategy", "bad-names", "files-without-directory"),
    }
    assert codes_of("strategies", "BadInputError") - of_configuration <= UNFIT_WEIGHTS
    everywhere = {
        code
        for package in ("strategies", "actions", "worker", "controller")
        for base in ("BadInputError", "RefusedError", "GroupError")
        for code in codes_of(package, base)
    }
    assert everywhere | {"source-overwritten"} >= UNFIT_WEIGHTS, "no part of wsm says these any more"


def test_the_native_api_takes_every_keyword_of_the_library_that_json_can_say() -> None:
    for operation, method in {"update": "update", "clear": "clear", "prepare": "lease"}.items():
        parameters = set(wsm.Controller.__dict__[method].__signature__.parameters)
        assert parameters - {"self", "request_id", "still_wanted", "owner"} == set(FIELDS[operation])
