"""What trainers send is read by field, what cannot be honoured says so, and answers have their shapes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from wsm.committed_record import CommittedRecord
from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.http import errors as http_errors
from wsm.http.answers import HttpAnswer, failed
from wsm.http.bodies import Label, Text, Texts, as_struct, label_of, object_of, without_nulls
from wsm.http.surfaces import SURFACES, SurfaceOptions, _refusals, fastdeploy, sglang, vllm
from wsm.http.surfaces._pausing import Flush, Pause, flush_of, pause_of, query_flag, tags_of
from wsm.http.surfaces._refusals import Reason
from wsm.http.surfaces._vllm_verbs import UpdateWeightsBody, WeightSource, needs_no_setup, source_of
from wsm.signals.errors import RoleBusyError
from wsm.states.holding import Hold
from wsm.states.vocabulary import ALL_TAGS, InFlightPolicy, KVPolicy, Tag
from wsm.status import GroupStatus

ABORT, DRAIN, KEEP = InFlightPolicy.ABORT, InFlightPolicy.DRAIN, InFlightPolicy.KEEP


class _Body(msgspec.Struct):
    """The kinds of fields that verbs have."""

    path: Text
    label: Label | None = None
    texts: Texts | None = None
    flag: bool = False
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    within: _Body | None = None


@pytest.mark.parametrize(
    "body",
    [
        b"[1]",
        b'"text"',
        b"{",
        b"\xff",
        b"3",
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 2}',
    ],
    ids=lambda b: str(b[:9]),
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadInputError, match="body") as caught:
        object_of(body)
    assert caught.value.code == "bad-body"


@pytest.mark.parametrize("body", [b"", b" \n", b"{}", b"null"])
def test_a_body_may_be_missing(body: bytes) -> None:
    assert object_of(body) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", "\ud800"),
        ("path", 3),
        ("path", ""),
        ("path", "a\0b"),
        ("label", True),
        ("label", 1.5),
        ("texts", {"weights": True}),
        ("texts", ["weights", 3]),
        ("flag", "false"),
        ("flag", 1),
        ("number", "7"),
        ("number", -1),
        ("within", ["path"]),
        ("within.number", -1),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(field: str, value: object) -> None:
    outer, _, inner = field.partition(".")
    with pytest.raises(BadInputError) as caught:
        as_struct({"path": "/w", outer: {"path": "/w", inner: value} if inner else value}, _Body)
    assert caught.value.context["field"] == field


def test_a_field_that_must_be_there_is_refused_by_its_name_where_it_is_not() -> None:
    for said, field in (({"path": None}, "path"), ({"path": "/w", "within": {"label": 7}}, "within.path")):
        with pytest.raises(BadInputError) as caught:
            as_struct(without_nulls(said), _Body)
        assert caught.value.context["field"] == field


def test_what_no_verb_knows_passes_and_a_null_says_nothing() -> None:
    read = as_struct(without_nulls({"path": "/w", "flag": None, "of another release": [None]}), _Body)
    assert read == _Body("/w")


def test_what_a_query_says_of_a_truth_value_is_true_or_false_and_nothing_near_it() -> None:
    assert query_flag("false", "clear_cache", otherwise=True) is False
    with pytest.raises(BadInputError, match="clear_cache"):
        query_flag("maybe", "clear_cache", otherwise=True)


def test_a_label_may_be_a_number_and_becomes_text() -> None:
    for said, label in ((7, "7"), ("global_step_1200", "global_step_1200"), (None, None)):
        assert label_of(as_struct(without_nulls({"path": "/w", "label": said}), _Body).label) == label


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        (None, ALL_TAGS),
        ([], ALL_TAGS),
        (["weight"], {Tag.WEIGHTS}),
        (["weights"], {Tag.WEIGHTS}),
        (["weight,kv_cache"], ALL_TAGS),
        (["kv_cache", "cuda_graph"], {Tag.KV_CACHE}),
        (["cuda_graph"], set()),
    ],
)
def test_tags_are_read_as_every_trainer_writes_them(words: list[str] | None, tags: set[Tag]) -> None:
    assert tags_of(words) == tags


def test_a_word_that_only_contains_a_tag_is_none() -> None:
    with pytest.raises(BadInputError, match="weightless"):
        tags_of(["weightless"])


@pytest.mark.parametrize(
    ("mode", "clear_cache", "pause"),
    [
        (None, None, Pause(ABORT, KVPolicy.DROP)),
        ("abort", None, Pause(ABORT, KVPolicy.DROP)),
        ("wait", None, Pause(DRAIN, KVPolicy.DROP)),
        ("keep", None, Pause(KEEP, KVPolicy.DROP)),
        ("keep", False, Pause(KEEP, KVPolicy.KEEP)),
        ("abort", True, Pause(ABORT, KVPolicy.DROP)),
        ("in_place", None, Pause(KEEP, KVPolicy.KEEP)),
        ("retract", None, Pause(KEEP, KVPolicy.DROP)),
    ],
)
def test_a_pause_says_what_becomes_of_requests_and_blocks(
    mode: str | None, clear_cache: bool | None, pause: Pause
) -> None:
    assert pause_of(mode, clear_cache=clear_cache) == pause


def test_a_pause_of_an_unknown_mode_is_refused() -> None:
    with pytest.raises(BadInputError, match="mode"):
        pause_of("aborted")


@pytest.mark.parametrize(
    ("hold", "requests_open", "answer"),
    [
        (None, 0, Flush.TO_DO),
        (None, None, Flush.TO_DO),
        (None, 2, Flush.REQUESTS_OPEN),
        (Hold("h", "o", InFlightPolicy.ABORT, KVPolicy.DROP), 0, Flush.FLUSHED),
        (Hold("h", "o", InFlightPolicy.KEEP, KVPolicy.DROP), 2, Flush.FLUSHED),
        (Hold("h", "o", InFlightPolicy.KEEP, KVPolicy.KEEP), None, Flush.REQUESTS_OPEN),
    ],
)
def test_a_flush_is_done_once_no_block_of_older_weights_is_left(
    hold: Hold | None, requests_open: int | None, answer: Flush
) -> None:
    assert flush_of(hold, requests_open=requests_open) is answer


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ({"update_info": {"path": "/w/step_7"}}, WeightSource("/w/step_7")),
        ({"update_info": {"path": "/w/x", "version": "step-7"}}, WeightSource("/w/x", "step-7")),
        ({"update_info": {"version": 7}}, WeightSource(label="7")),
        ({"weight_dir": "/w/step_7"}, WeightSource("/w/step_7")),
        ({"weight_dir": None}, WeightSource(refused=Reason.PUSH)),
        ({"update_info": {"names": ["w"], "dtype_names": ["bf16"]}}, WeightSource(refused=Reason.PUSH)),
        ({}, WeightSource(refused=Reason.PUSH)),
    ],
)
def test_an_update_names_a_directory_or_a_version_or_is_a_push(
    body: dict[str, Any], source: WeightSource
) -> None:
    assert source_of(as_struct(without_nulls(body), UpdateWeightsBody)) == source


@pytest.mark.parametrize(
    ("body", "fine"),
    [
        ({}, True),
        ({"init_info": {}}, True),
        ({"backend": "disk"}, True),
        ({"init_info": {"backend": "disk"}}, True),
        ({"type": "filesystem", "timeout": 1200}, True),
        ({"init_info": {"backend": "nccl"}}, False),
        ({"init_info": {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1}}, False),
        ({"host": "127.0.0.1", "port": 29501, "timeout": 1200}, False),
    ],
)
def test_only_a_transfer_by_files_needs_no_setting_up(body: dict[str, Any], fine: bool) -> None:
    assert needs_no_setup(body) is fine


@pytest.mark.parametrize("table", [_refusals.SGLANG, _refusals.VLLM, _refusals.AREAL])
def test_every_verb_that_cannot_be_honoured_says_why_and_names_a_way_out(table: dict[str, Any]) -> None:
    for verb, refusal in table.items():
        said = refusal.body()
        assert said["success"] is False
        assert verb in said["message"]
        assert said["error"]["type"] == "Unsupported"
        assert said["error"]["reason"]
        assert said["error"]["use_instead"]
        taken_back = ("destroy", "close", "unload")
        assert refusal.closes is not any(word in verb for word in taken_back)


def test_every_surface_has_each_of_its_paths_once_and_routes_for_no_requests_for_text() -> None:
    for name, surface_of in SURFACES.items():
        surface = surface_of(SurfaceOptions())
        assert surface.name == name
        named = [(route.method, route.path) for route in surface.routes]
        assert len(named) == len(set(named))
        assert not {path for _, path in named} & surface.data_paths


BUSY = RoleBusyError(path="wsm.policy", pid=4, doing="", stopped=False, waited_s=0.0, supervisor=False)


@pytest.mark.parametrize(
    ("error", "asked", "running", "code"),
    [
        (BUSY, "clear", "clear", 400),
        (BUSY, "update", "hot_update", 400),
        (BUSY, "clear", "update", 403),
        (BUSY, "update", "clear", 403),
        (BUSY, "update", "hold", 403),
        (RefusedError("no", code="command-timeout"), "clear", "clear", 404),
    ],
)
def test_a_legacy_get_is_refused_in_the_codes_of_fastdeploy(
    error: WsmError, asked: str, running: str, code: int
) -> None:
    assert fastdeploy.legacy_refusal(error, asked=asked, running=running)[0] == code


@pytest.mark.parametrize(
    ("generation", "status", "sent", "body"),
    [
        ("2.4", 200, 200, b""),
        ("2.4", 403, 404, b"why"),
        ("2.5", 200, 200, b'{"dp_rank": 0, "local_dp_rank": 0, "msg": "why"}'),
        ("2.6", 403, 403, b'{"dp_rank": 0, "local_dp_rank": 0, "msg": "why"}'),
    ],
)
def test_a_legacy_get_answers_as_its_generation_does(
    generation: str, status: int, sent: int, body: bytes
) -> None:
    answer = fastdeploy.legacy_answer(fastdeploy.generation_of(generation), status, "why")
    if isinstance(answer, HttpAnswer):
        assert (answer.status, answer.content()) == (sent, body)
    else:
        assert (answer.status_code, answer.body) == (sent, body)


def test_text_that_a_held_group_does_not_take_is_503_and_no_failed_control_verb_of_fastdeploy() -> None:
    answer = failed(http_errors.admission_closed(why="the group is held"))
    assert fastdeploy.failure_of(answer) == answer
    assert (answer.status, "Retry-After" in answer.headers) == (503, True)


def test_a_generation_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"2\.6"):
        fastdeploy.generation_of("3")


@pytest.mark.parametrize(
    ("status", "code"), [(400, 400), (401, 401), (409, 500), (422, 500), (503, 500), (504, 500), (500, 500)]
)
def test_a_control_verb_of_fastdeploy_fails_in_its_envelope(status: int, code: int) -> None:
    answer = fastdeploy.failure_of(HttpAnswer(status, {"error": {"message": "why"}, "request_id": "one"}))
    assert answer.status == answer.status == code
    assert dict(answer.body) | {"error": None} == {
        "request_id": "one",
        "status": "error",
        "error_message": "why",
        "result": None,
        "error": None,
    }


def test_errors_of_the_other_surfaces_are_where_their_clients_look() -> None:
    answer = failed(RefusedError("no such thing", code="held-by-another"))
    said = sglang.failure_of(answer)
    assert (said.status, said.body["success"], said.body["message"]) == (409, False, "no such thing")
    said = vllm.failure_of(answer)
    assert (said.status, said.body["error"]["message"]) == (409, "no such thing")
    assert said.body["error"]["code"] == "held-by-another"


def test_what_a_server_says_of_itself_can_be_added_to_by_option() -> None:
    status = GroupStatus("policy", committed=CommittedRecord(1, "7"))
    more = {"tp_size": 4, "dtype": "float16"}
    said = sglang.server_info(status, word="7", model="policy", path="/m", version="0", more=more)
    assert (said["tp_size"], said["dtype"], said["weight_version"]) == (4, "float16", "7")
    assert said["enable_memory_saver"] is False
