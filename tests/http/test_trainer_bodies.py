"""What trainers send is read by field, what cannot be honoured says so, and answers have their shapes."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from starlette.datastructures import QueryParams

from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.http.answers import HttpAnswer, failed
from wsm.http.bodies import Label, Text, Texts, as_struct, label_of, object_of, query_of, without_nulls
from wsm.http.surfaces import SURFACES, SurfaceOptions, fastdeploy, sglang, vllm
from wsm.http.surfaces._call import tags_of
from wsm.http.surfaces._verbs import Reason, Refusal, TagsQuery
from wsm.signals.errors import RoleBusyError
from wsm.states.vocabulary import ALL_TAGS, Tag


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
    for said, clears in (("False", False), ("true", True), ("0", False)):
        query = query_of(QueryParams(f"mode=keep&clear_cache={said}"), vllm.PauseQuery)
        assert query == vllm.PauseQuery("keep", clears)
    for said in ("clear_cache=maybe", "mode=aborted"):
        with pytest.raises(BadInputError) as caught:
            query_of(QueryParams(said), vllm.PauseQuery)
        assert caught.value.context["field"] == said.partition("=")[0]
    assert query_of(QueryParams("tags=a&tags=b&of=others"), TagsQuery).tags == ["a", "b"]


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


@pytest.mark.parametrize("reason", Reason)
def test_every_verb_that_cannot_be_honoured_says_why_and_names_a_way_out(reason: Reason) -> None:
    said = Refusal(reason).answer("/verb", held=True)
    assert (said.success, said.held, said.error.type) == (False, True, "Unsupported")
    assert said.message == said.error.message
    assert all(each in said.message for each in ("/verb", said.error.reason, said.error.use_instead))


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


def test_text_that_a_held_group_does_not_take_is_503_and_no_failed_control_verb_of_fastdeploy() -> None:
    answer = failed(RefusedError("the group is held", code="admission-closed"))
    assert fastdeploy.failure_of(answer) == answer
    assert (answer.status, "Retry-After" in answer.headers) == (503, True)


def test_a_generation_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"2\.6"):
        SurfaceOptions(fastdeploy_generation="3")


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
