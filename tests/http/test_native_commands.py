"""The native API commands a real group: each verb, its receipt, and what is asked twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import wsm
from tests.raising import raising
from wsm.http import AsyncClient, InHold, Origin, Surface, SurfaceRoute
from wsm.http import errors as http_errors
from wsm.http.answers import HttpAnswer, error_of, failed
from wsm.http.native import _events
from wsm.http.native.routes import ROUTES
from wsm.http.surfaces import SURFACES, SurfaceOptions
from wsm.receipt import Outcome, Receipt

pytestmark = pytest.mark.processes


def engine(path: str) -> Starlette:
    """An engine's app that answers one path."""

    async def text(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("text")

    return Starlette(routes=[Route(path, text, methods=["POST"])])


def receipt_of(answer) -> Receipt:
    assert answer.status_code == 200, answer.text
    return Receipt.from_mapping(answer.json()["receipt"])


@pytest.mark.slow
def test_every_verb_answers_the_receipt_of_the_command(front, living) -> None:
    first = receipt_of(front.post("/wsm/v1/update", version=2))
    assert (first.outcome, first.version, len(first.ranks)) == (Outcome.UPDATED, "2", 2)
    assert receipt_of(front.post("/wsm/v1/hold")).hold.owner == "http:native"
    assert receipt_of(front.post("/wsm/v1/clear", tags=["weights"])).missing == ("weights",)
    assert front.ask("GET", "/health").status_code == 200, "a held and cleared group can be commanded"
    assert front.ask("GET", "/wsm/v1/ready").status_code == 503
    assert receipt_of(front.post("/wsm/v1/update", version=3, after="serve")).outcome is Outcome.UPDATED
    assert front.ask("GET", "/wsm/v1/ready").status_code == 200
    assert receipt_of(front.post("/wsm/v1/release")).outcome is Outcome.ALREADY_OPEN
    said = front.ask("GET", "/wsm/v1/status").json()
    assert (said["version"], said["closed"], said["serving"]) == ("3", None, True)
    assert front.ask("GET", "/wsm/v1/explain").json()["group"] == living.name
    living.await_steps()
    living.assert_steps_are_pure()


def test_what_is_prepared_is_decided_by_another_request(front) -> None:
    prepared = receipt_of(
        front.ask("POST", "/wsm/v1/prepare", json={"version": 2}, headers={"Idempotency-Key": "two"})
    )
    assert prepared.outcome is Outcome.PREPARED
    refused = front.post("/wsm/v1/update", version=3)
    assert refused.status_code == 503
    assert 1 < int(refused.headers["retry-after"]) <= 300, "its lease lasts so long"
    assert receipt_of(front.post("/wsm/v1/commit", request_id="two")).version == "2"
    late = front.post("/wsm/v1/abort", request_id="two")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "decided-otherwise")


def test_an_update_that_fails_is_answered_once_the_version_before_serves_again(front, living) -> None:
    file, whole = living.damage(3)
    try:
        answer = front.post("/wsm/v1/update", version=3, on_failure="restore", restore_s=60)
    finally:
        file.write_bytes(whole)  # other tests load it
    told = answer.json()["error"]
    assert (told["code"], told["context"]["restored"]) == ("rank-failed", "1")
    assert told["message"].endswith("; version 1 serves again")
    assert front.ask("GET", "/wsm/v1/ready").status_code == 200
    refused = front.post("/wsm/v1/update", version=3, on_failure="panic")
    assert (refused.status_code, "on_failure" in refused.text) == (400, True)


def test_an_idempotency_key_answers_the_receipt_again_also_after_a_restart(make_front) -> None:
    named = {"Idempotency-Key": "once"}
    front = make_front()
    asked = {"json": {"version": 2, "force": True}, "headers": named}
    first, same = front.ask_all(*[("POST", "/wsm/v1/update", asked)] * 2)
    assert first.json() == same.json()
    successor = make_front()
    again = successor.ask("POST", "/wsm/v1/update", **asked)
    assert receipt_of(again) == receipt_of(first)
    assert successor.ask("GET", "/wsm/v1/commands/once").json()["state"] == "succeeded"
    other = successor.ask("POST", "/wsm/v1/update", json={"version": 3}, headers=named)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "request-id-used")


def test_a_version_that_is_not_there_is_422_and_an_error_of_the_library_again(front) -> None:
    refused = front.post("/wsm/v1/update", version=99)
    assert refused.status_code == 422, refused.text
    error = error_of(refused.json(), status=422)
    assert isinstance(error, wsm.WsmError)
    assert error.rank in (0, 1)
    assert front.ask("GET", "/wsm/v1/ready").status_code == 200


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/wsm/v1/update", b"{", "body"),
        ("/wsm/v1/update", b"[]", "body"),
        ("/wsm/v1/update", b'{"version": 1.5}', "version"),
        ("/wsm/v1/update", b'{"hot": 1}', "hot"),
        ("/wsm/v1/update", b'{"versoin": 2}', "versoin"),
        ("/wsm/v1/hold", b'{"lease_s": -1}', "lease_s"),
        ("/wsm/v1/hold", b'{"lease_s": NaN}', "body"),
        ("/wsm/v1/clear", b'{"tags": ["wieghts"]}', "tags"),
        ("/wsm/v1/hold", b'{"lease_s": 1e999}', "body"),
        ("/wsm/v1/hold", b'{"on_lease": "leave"}', "on_lease"),
        ("/wsm/v1/commit", b"{}", "request_id"),
        ("/wsm/v1/commit", b'{"request_id": "\\ud800"}', "request_id"),
        ("/wsm/v1/commit", b'{"request_id": "a", "request_id": "b"}', "body"),
        ("/wsm/v1/update", b'{"version": 18446744073709551616}', "body"),
        ("/wsm/v1/update", b'{"rsync_config": ' + b'{"a":' * 64 + b"1" + b"}" * 65, "body"),
        ("/wsm/v1/update", b"[" * 100_000, "body"),
    ],
)
def test_a_body_that_is_none_is_400_by_its_field_and_reaches_no_rank(front, path, body, field) -> None:
    before = front.ask("GET", "/wsm/v1/status").json()["sequence"]
    answer = front.ask("POST", path, content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["context"]["field"] == field
    assert front.ask("GET", "/wsm/v1/status").json()["sequence"] == before


@pytest.mark.slow
def test_a_hold_belongs_to_its_surface_and_a_refused_verb_keeps_it_closed(make_front) -> None:
    async def pause(_request, commands):
        return HttpAnswer(200, {"held": (await commands.hold(Origin("made"))).outcome.value})

    async def resume(_request, commands):
        await commands.release(Origin("made"))
        return HttpAnswer(200)

    async def push(_request, commands):
        closed = await commands.fail_closed(Origin("made"), verb="push", reason="no digest")
        return HttpAnswer(501, {"closed": closed})

    answers = {200: dict[str, Any], 501: dict[str, Any]}
    verbs = [SurfaceRoute("POST", f"/{do.__name__}", do, answers=answers) for do in (pause, resume, push)]
    made = Surface("made", tuple(verbs), InHold.FAIL, frozenset({"/text"}))
    front = make_front(surfaces=[made], rest=engine("/text"))
    answers = front.ask_all(*[("POST", "/pause/", {})] * 3)
    assert sorted(each.json()["held"] for each in answers) == ["held", "hold renewed", "hold renewed"]
    assert front.post("/wsm/v1/hold").json()["error"]["code"] == "held-by-another"
    assert front.post("/wsm/v1/release").status_code == 409
    assert front.post("/text").json()["error"]["code"] == "admission-closed"
    assert front.post("/push").json() == {"closed": True}

    successor = make_front(surfaces=[made], rest=engine("/text"))
    assert successor.post("/resume").json()["error"]["code"] == "hold-closed"
    assert successor.post("/text").status_code == 503
    assert receipt_of(successor.post("/wsm/v1/update", version=3)).hold.owner == "http:made"
    assert successor.post("/resume").status_code == 200
    assert successor.post("/text").status_code == 200
    assert successor.post("/push").json() == {"closed": False}


def test_a_client_gets_typed_receipts_and_the_library_s_own_errors(front) -> None:
    async def asked():
        transport = httpx.ASGITransport(front.app)
        async with AsyncClient("http://127.0.0.1", transport=transport) as client:
            receipt = await client.command(
                "update", "typed", version=3, kv_policy=wsm.KVPolicy.DROP, force=True
            )
            known = await client.request("typed")
            with pytest.raises(wsm.RefusedError) as unknown:
                await client.request("never asked")
            with pytest.raises(wsm.BadInputError) as bad:
                await client.command("clear", tags=["nothing"])
            await client.command("prepare", "undecided", version=2)
            assert (await client.command("abort", "undecided")).outcome is Outcome.ABORTED
            assert await client.ready()
            return receipt, known, unknown.value.code, bad.value.field, await client.status()

    receipt, known, unknown, field, status = asyncio.run(asked())
    assert (receipt.version, receipt.outcome) == ("3", Outcome.UPDATED)
    assert Receipt.from_mapping(known["receipt"]) == receipt
    assert (unknown, field, status["version"]) == ("request-unknown", "tags", "3")


def test_who_would_not_wait_is_told_where_the_command_is(front) -> None:
    wanted = {"Prefer": "respond-async", "Idempotency-Key": "later"}
    asked = {"json": {"version": 2, "force": True}}
    answer = front.ask("POST", "/wsm/v1/update", **asked, headers=wanted)
    assert answer.status_code in (200, 202), answer.text
    if answer.status_code == 202:
        assert answer.headers["location"] == "/wsm/v1/commands/later"
    again = receipt_of(front.ask("POST", "/wsm/v1/update", **asked, headers={"Idempotency-Key": "later"}))
    assert again.request_id == "later"
    assert front.ask("GET", "/wsm/v1/commands/later").json()["state"] == "succeeded"


def test_events_are_the_lines_of_journals_as_they_are_written(front) -> None:
    async def followed():
        found = []
        request = Request({"type": "http", "query_string": b"", "headers": []})
        lines = (await _events.events(request, front.commands)).body_iterator
        await anext(lines)
        asking = asyncio.create_task(front.commands.update(Origin("native", "followed"), 1, force=True))
        async for part in lines:
            found.append(part.decode())
            if "command_issued" in found[-1]:
                break
        await asking
        async for part in lines:
            found.append(part.decode())
            if '"CONFIRMED"' in part.decode() or len(found) > 5:
                break
        await lines.aclose()
        return found

    found = asyncio.run(followed())
    _events._open_streams.clear()
    assert any('"followed"' in each for each in found)
    assert [
        each for each in found if each[0] != ":" and not re.match(r"event: [\w.-]+\ndata: \{.*\}\n\n$", each)
    ] == []


def test_the_native_api_describes_itself_and_every_field_that_it_takes_and_answers(front) -> None:
    said = front.ask("GET", "/wsm/v1/openapi.json").json()
    assert said["openapi"].startswith("3.1")
    schemas, update = said["components"]["schemas"], said["paths"]["/wsm/v1/update"]["post"]
    assert update["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/UpdateBody")
    assert schemas["UpdateBody"]["additionalProperties"] is False
    assert schemas["CommitBody"]["required"] == ["request_id"]
    assert schemas["After"]["enum"] == ["as-before", "held", "serve"]
    answer = update["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert set(schemas[answer.rpartition("/")[2]]["properties"]) == {"receipt"}
    known = {route.path.replace(":path", "") for route in ROUTES}
    assert set(said["paths"]) == {*known, "/health", "/metrics"}
    events = said["paths"]["/wsm/v1/events"]["get"]["responses"]["200"]
    assert list(events["content"]) == ["text/event-stream"]
    assert list(bare_objects(said)) == []


def test_the_verbs_of_every_surface_are_described_with_what_they_take_and_answer(make_front) -> None:
    surfaces = [made(SurfaceOptions()) for made in SURFACES.values()]
    said = make_front(surfaces=surfaces).ask("GET", "/wsm/v1/openapi.json").json()
    for surface in surfaces:
        for route in surface.routes:
            assert route.method.lower() in said["paths"][route.path.replace(":path", "")]
    pause, update = said["paths"]["/pause"]["post"], said["paths"]["/update_weights_from_disk"]["post"]
    modes = next(each["schema"] for each in pause["parameters"] if each["name"] == "mode")
    assert "retract" in str(modes)
    assert update["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/FromDiskBody")
    for status, kind in (("200", "FromDiskAnswer"), ("default", "SglangFailure")):
        schema = update["responses"][status]["content"]["application/json"]["schema"]
        assert f"'#/components/schemas/{kind}'" in str(schema)
    assert said["paths"]["/health"]["get"]["responses"]["304"]["content"] == {}, "FastDeploy's is the first"
    assert list(bare_objects(said)) == []
    names = [each["operationId"] for path in said["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))


def bare_objects(said: Any) -> Iterator[Any]:
    """Schemas of objects that do not say which fields they have, or that they have any."""
    is_object = isinstance(said, dict) and said.get("type") == "object"
    if is_object and not {"properties", "additionalProperties"} & set(said):
        yield said
    for each in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        yield from bare_objects(each)


def test_a_refused_body_of_a_megabyte_is_kept_by_its_digest(front) -> None:
    asked = {"version": 77, "rsync_config": {"name": "x" * 900_000}}
    headers = {"Idempotency-Key": "long"}
    refused = front.ask("POST", "/wsm/v1/update", json=asked, headers=headers)
    assert refused.status_code >= 400
    assert list(front.ask("GET", "/wsm/v1/commands/long").json()["asked"]) == ["sha256"]
    other = {**asked, "rsync_config": {"name": "y" * 900_000}}
    again = front.ask("POST", "/wsm/v1/update", json=other, headers=headers)
    assert again.json()["error"]["code"] == "request-id-used"
    assert front.commands.receipts_path.stat().st_size < 100_000


@pytest.mark.slow_but
@pytest.mark.parametrize("path", ["/wsm/v1/hold", "/pause", "/wsm/v1/status", "/engine/own", "/text"])
def test_a_request_that_names_another_group_is_421_and_changes_nothing(make_front, living, path) -> None:
    surface = Surface("made", data_paths=frozenset({"/text"}))
    front = make_front(surfaces=[surface, SURFACES["vllm"](SurfaceOptions())], rest=engine("/text"))
    method = "GET" if path.endswith("status") else "POST"
    other = front.ask(method, path, headers={"X-Wsm-Group": "another"}, content=b"{}")
    assert (other.status_code, other.json()["error"]["code"]) == (421, "wrong-group")
    own = front.ask(method, path, headers={"X-Wsm-Group": living.name}, content=b"{}")
    assert own.status_code == (404 if path == "/engine/own" else 200)
    if path in ("/wsm/v1/hold", "/pause"):
        assert front.post(path, group="another").status_code == 421
        assert front.post(path, group=living.name).status_code == 200
        assert front.post("/wsm/v1/release", force=True, group=living.name).status_code == 200
    assert front.ask("GET", "/wsm/v1/status").json()["hold"] is None


def test_a_client_says_which_group_it_means(front, living) -> None:
    async def scene():
        for group in (living.name, "another"):
            transport = httpx.ASGITransport(front.app)
            async with AsyncClient("http://127.0.0.1", transport=transport, group=group) as client:
                yield await client.status()

    async def both():
        told = scene()
        assert (await anext(told))["name"] == living.name
        with raising(http_errors.wrong_group):
            await anext(told)

    asyncio.run(both())


def test_the_asynchronous_client_raises_what_its_stream_of_events_was_refused_with() -> None:
    def refuses(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(401, json=failed(http_errors.unauthorized()).body)

    async def scene() -> None:
        async with AsyncClient("http://127.0.0.1", transport=httpx.MockTransport(refuses)) as client:
            with raising(http_errors.unauthorized):
                await anext(client.events())
            for name in ("a#b", "a/../status"):
                with raising(http_errors.unauthorized):
                    await client.request(name)

    paths: list[bytes] = []
    asyncio.run(scene())
    assert paths[1:] == [b"/wsm/v1/commands/a%23b", b"/wsm/v1/commands/a%2F..%2Fstatus"]


def test_no_more_streams_of_events_are_open_than_there_are_places(front, monkeypatch) -> None:
    monkeypatch.setattr(_events, "MOST_STREAMS", 2)

    async def scene():
        request = Request({"type": "http", "query_string": b"", "headers": []})
        made = [await _events.events(request, front.commands) for _ in range(2)]
        with raising(http_errors.server_busy):
            await _events.events(request, front.commands)

        async def leaves():
            return {"type": "http.disconnect"}

        async def drops(_message):
            pass

        for stream in made:
            await stream({"type": "http", "asgi": {}}, leaves, drops)
        return await _events.events(request, front.commands)

    asyncio.run(scene())
    _events._open_streams.clear()


def test_a_group_with_a_stopped_rank_is_not_healthy(front, monkeypatch) -> None:
    status = asyncio.run(front.commands.status())
    assert front.ask("GET", "/health").status_code == 200
    stopped = replace(status, ranks=(replace(status.ranks[0], life="stopped"), *status.ranks[1:]))
    monkeypatch.setattr(front.commands, "_status", lambda: stopped)
    assert front.ask("GET", "/health").status_code == 503
