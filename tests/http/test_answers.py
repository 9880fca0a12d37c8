"""Which status answers which error, for every type and every code that wsm has."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import wsm
from tests.sources import syntax_of
from wsm.command import FailureReport
from wsm.controller.errors import DecisionHeldError
from wsm.errors import BadInputError, GroupError, InternalError, RefusedError, WsmError
from wsm.http.answers import error_mapping, error_of, failed, response_of, status_of, untold
from wsm.http.native.schema import BODIES
from wsm.states.vocabulary import Tag, WeightState
from wsm.strategies.adopt.checkpoint import incomplete_checkpoint

SOURCE = Path(wsm.__path__[0])
DOCUMENTED = (SOURCE.parents[1] / "docs" / "errors.md").read_text()

STATUSES = {
    "ActionOverdueError": 500,
    "RankFailedError": 500,
    "FlipFailedError": 500,
    "RestartLimitError": 500,
    "CommandOpenError": 503,
    "DecisionHeldError": 503,
    "RoleBusyError": 503,
    "PublisherBusyError": 503,
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
            *("MixedGroupError", "NotServingError", "PreconditionError"),
            *("SlotTakenError", "StorageError", "TensorReleasedError", "VersionExistsError"),
        ],
        409,
    ),
}


@dataclass(frozen=True)
class ReportedCause:
    cause: str
    ranks: tuple[int, ...]


def made(kind: type[WsmError], **context) -> WsmError:
    error = kind.__new__(kind)
    WsmError.__init__(error, "it happened", **context)
    return error


def test_every_exported_type_has_a_status_and_comes_back_as_itself() -> None:
    assert set(STATUSES) == set(re.findall(r"^\| `(\w+)` \| `\w+` \| `[\w-]+` \|", DOCUMENTED, re.MULTILINE))
    for name, status in STATUSES.items():
        error = made(getattr(wsm, name), rank=1, ranks=(0, 1))
        answer = failed(error, request_id="r")
        assert answer.status == status, name
        assert ("Retry-After" in answer.headers) == (status == 503)
        assert answer.body["error"]["retryable"] is (status in (500, 502, 503, 504)), "as docs/http.md says"
        back = error_of(answer.body, status=status)
        assert (type(back), back.code, str(back), back.rank) == (type(error), error.code, "it happened", 1)


def test_a_family_without_a_code_of_its_own_is_answered_by_its_family() -> None:
    by_family = {BadInputError: 400, RefusedError: 409, GroupError: 500, InternalError: 500}
    for kind, status in by_family.items():
        assert status_of(kind("x", code="some-other")) == status
    assert status_of(ValueError("ours")) == 500
    ours = error_mapping(ValueError("ours"))
    assert (ours["message"][:34], ours["retryable"]) == ("the server met an error of its own", True)


def test_who_meets_a_prepared_command_may_ask_again_once_its_lease_is_over() -> None:
    held = DecisionHeldError("wait", sequence=7, left_s=41.2)
    assert failed(held).headers["Retry-After"] == "42"
    assert failed(DecisionHeldError("wait", sequence=7, left_s=None)).headers["Retry-After"] == "1"


def test_tracebacks_of_ranks_stay_on_their_host_however_deep_they_stand() -> None:
    error = made(wsm.RankFailedError, remote_traceback="File x", deaths=("1",), rank=1)
    assert error_mapping(error)["context"] == {"remote_traceback": "", "deaths": [], "rank": 1}
    said = {"earlier": [{"report": {"traceback": "File x", "message": "m"}}], "ranks": ()}
    assert untold(said) == {"earlier": [{"report": {"traceback": "", "message": "m"}}], "ranks": []}


def test_what_an_error_knows_is_told_as_values_and_never_as_their_text() -> None:
    known = {
        "ranks": (0, 1),
        "tags": frozenset({Tag.WEIGHTS, Tag.KV_CACHE}),
        "state": WeightState.NORMAL,
        "path": Path("/store"),
        "request": ReportedCause("gone", (1, 2)),
        "final": True,
        "left_s": 1.5,
    }
    told = json.loads(response_of(failed(RefusedError("no", **known))).body)["error"]["context"]
    assert told == {
        "ranks": [0, 1],
        "tags": sorted([Tag.WEIGHTS.value, Tag.KV_CACHE.value]),
        "state": WeightState.NORMAL.value,
        "path": "/store",
        "request": {"cause": "gone", "ranks": [1, 2]},
        "final": True,
        "left_s": 1.5,
    }


def test_unfit_weights_are_422_also_when_a_rank_found_them_and_come_back_as_such() -> None:
    for found in (wsm.DigestMismatchError, wsm.SnapshotNotFoundError, wsm.DeltaBaseError):
        report = FailureReport.from_bytes(1, FailureReport.of(1, "load", made(found)).to_bytes())
        for kind in (wsm.RankFailedError, wsm.CommandRefusedError):
            error = made(kind, error=report.error)
            error.unfit = report.unfit
            assert status_of(error) == 422
            again = pickle.loads(pickle.dumps(error_of(failed(error).body, status=422)))  # noqa: S301 - ours
            assert (type(again), status_of(again)) == (kind, 422)
    broken = FailureReport.of(1, "load", RuntimeError("no memory"))
    assert not FailureReport.from_bytes(1, broken.to_bytes()).unfit


def test_a_checkpoint_that_its_trainer_is_still_writing_may_be_asked_for_again() -> None:
    answer = failed(incomplete_checkpoint(path="/exchange/step_7", problem="its last file is cut short"))
    assert (answer.status, answer.body["error"]["retryable"]) == (422, True)


BAD_INPUTS = ("BadInputError", "UnfitError")


def bad_inputs(package: str) -> Iterator[tuple[str, bool]]:
    """Codes of bad input that a package tells of, and whether each says something of weights."""
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.walk(syntax_of(path)):
            bases = {ast.unparse(each) for each in node.bases} if isinstance(node, ast.ClassDef) else set()
            if bases & set(BAD_INPUTS):
                name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", node.name.removesuffix("Error")).lower()
                yield name, "UnfitError" in bases
            code = coded_by(node)
            for call in ast.walk(node) if code or isinstance(node, ast.Call) else ():
                kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                if isinstance(call, ast.Call) and kind in BAD_INPUTS:
                    said = {each.arg: ast.unparse(each.value) for each in call.keywords}
                    if code or "code" in said:  # one without is found in its function once more
                        yield code or ast.literal_eval(said["code"]), kind == "UnfitError"


def coded_by(node: ast.AST) -> str | None:
    """The code that a decorator gives to the errors of a function."""
    for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "coded":
            return str(ast.literal_eval(decorator.args[0]))
    return None


def test_every_bad_input_of_a_strategy_says_that_it_is_of_the_weights_unless_it_is_of_configuration() -> None:
    of_configuration = {
        *("bad-address", "bad-engine-settings", "bad-transport-option", "not-a-strategy"),
        *("transport-unknown", "unknown-strategy", "bad-names", "files-without-directory", "outside-roots"),
        "bad-target",  # of a fleet: no rank has been asked for anything
    }
    told = dict(bad_inputs("strategies"))
    assert {code for code, unfit in told.items() if not unfit} == of_configuration


def test_the_native_api_takes_every_keyword_of_the_library_that_json_can_say() -> None:
    for operation, method in {"update": "update", "clear": "clear", "prepare": "lease"}.items():
        parameters = set(wsm.Controller.__dict__[method].__signature__.parameters)
        assert parameters - {"self", "request_id", "still_wanted", "owner"} == set(
            BODIES[operation].__struct_fields__
        ) - {"group", "directory"}
