"""begin, update, finish: what becomes of an update in parts whose trainer or server ends in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from living_group import LivingGroup

from wsm.controller.errors import RankLostError
from wsm.errors import BadInputError
from wsm.http.surfaces import SURFACES, AdoptedDirectory, SurfaceOptions

pytestmark = pytest.mark.processes


@pytest.fixture
def surfaced(make_front: Callable[..., Any]) -> Callable[..., Any]:
    def by_name(directory: str, label: str | None) -> AdoptedDirectory:
        number = directory.rpartition("_")[2]
        return AdoptedDirectory(label or number, f"{directory}@{number}")

    def make(*names: str, **options: Any) -> Any:
        given = SurfaceOptions(**{"adopt": by_name, **options})
        return make_front(surfaces=[SURFACES[name](given) for name in names])

    return make


def said(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def loaded(front: Any, version: int) -> str:
    answer = said(front.post("/update_weights_from_disk", model_path=f"/w/step_{version}"))
    return str(answer["wsm"]["outcome"])


@pytest.mark.slow
def test_an_update_that_was_begun_and_never_ended_makes_no_later_one_a_preparation(
    surfaced: Callable[..., Any],
) -> None:
    front = surfaced("sglang")
    said(front.post("/begin_weight_update"))
    said(front.post("/pause_generation"))  # another trainer, which knows of no beginning
    assert loaded(front, 2) == "updated"
    said(front.post("/continue_generation"))
    said(front.post("/begin_weight_update"))
    said(front.post("/continue_generation"))
    assert loaded(front, 3) == "updated"
    hasty = surfaced("sglang", lease_s=0.0)
    said(hasty.post("/begin_weight_update"))
    assert loaded(hasty, 2) == "updated", "its time is over, as the lease of what it prepares would be"
    assert said(hasty.post("/end_weight_update"), 409)["error"]["code"] == "no-update-begun"


@pytest.mark.slow_but
@pytest.mark.parametrize("restarted", [False, True], ids=["the trainer", "the trainer and the server"])
def test_what_a_trainer_prepared_and_left_is_taken_back_by_the_pause_of_the_next(
    surfaced: Callable[..., Any], restarted: bool
) -> None:
    front = surfaced("sglang")
    said(front.post("/pause_generation"))
    said(front.post("/begin_weight_update"))
    assert loaded(front, 2) == "prepared"
    if restarted:
        front = surfaced("sglang")
    said(front.post("/pause_generation"))
    assert loaded(front, 3) == "updated"
    assert said(front.post("/continue_generation"))["wsm"]["version"] == "3"


@pytest.mark.slow
def test_a_server_that_is_started_again_knows_what_was_begun_and_what_was_prepared(
    surfaced: Callable[..., Any],
) -> None:
    for verbs in (
        ("sglang", "/pause_generation", "/begin_weight_update", "/end_weight_update", "/continue_generation"),
        ("vllm", "/pause", "/start_weight_update", "/finish_weight_update", "/resume"),
    ):
        surface, pause, begin, end, resume = verbs
        version = 2 if surface == "sglang" else 3
        body = (
            {"model_path": f"/w/step_{version}"}
            if surface == "sglang"
            else {"update_info": {"version": version}}
        )
        update = "/update_weights_from_disk" if surface == "sglang" else "/update_weights"
        said(surfaced(surface).post(pause))
        front = surfaced(surface)
        said(front.post(begin))
        begun = front.commands.kept.note("begun", surface)
        assert said(front.post(update, **body))["wsm"]["outcome"] == "prepared"
        front.commands.kept.remember("begun", surface, begun)  # it was killed before it knew that
        assert said(surfaced(surface).post(update, **body))["wsm"]["outcome"] == "prepared", (
            "not decided by it"
        )
        assert said(surfaced(surface).post(update, **body))["wsm"]["outcome"] == "prepared", "and asked again"
        assert said(surfaced(surface).post(end, weight_version=str(version)))["wsm"]["version"] == str(
            version
        )
        assert said(surfaced(surface).post(resume))["wsm"]["version"] == str(version)
        assert said(surfaced(surface).post(end), 409)["error"]["code"] == "no-update-begun"


def test_the_parts_of_an_update_may_come_to_any_server_of_the_group(surfaced: Callable[..., Any]) -> None:
    first, second = surfaced("sglang"), surfaced("sglang")
    said(first.post("/pause_generation"))
    said(second.post("/begin_weight_update"))
    assert loaded(first, 2) == "prepared"
    assert said(second.post("/end_weight_update"))["wsm"]["version"] == "2"
    assert said(first.post("/end_weight_update"), 409)["error"]["code"] == "no-update-begun"
    assert said(second.post("/continue_generation"), 409)["error"]["code"] == "hold-closed"
    assert loaded(second, 2) == "already served"
    assert said(first.post("/continue_generation"))["wsm"]["version"] == "2"


def test_a_trainer_that_goes_on_where_its_beginning_is_lost_is_refused_and_nothing_is_served(
    surfaced: Callable[..., Any], make_front: Callable[..., Any]
) -> None:
    front = surfaced("sglang")
    said(front.post("/pause_generation"))
    said(front.post("/begin_weight_update"))
    assert loaded(front, 2) == "prepared"
    front.commands.receipts_path.unlink()  # a host was cleaned up
    lost = surfaced("sglang")
    assert said(lost.post("/end_weight_update"), 409)["error"]["code"] == "no-update-begun"
    assert said(lost.post("/continue_generation"), 409)["error"]["code"] == "hold-closed"
    said(lost.post("/wsm/v1/abort"))
    assert loaded(lost, 2) == "updated"
    assert said(lost.post("/continue_generation"))["wsm"]["version"] == "2"


def test_another_surface_takes_nothing_back(surfaced: Callable[..., Any]) -> None:
    front, other = surfaced("sglang"), surfaced("vllm")
    said(front.post("/begin_weight_update"))
    assert loaded(front, 2) == "prepared"
    assert other.ask("POST", "/pause").status_code == 503
    assert said(front.post("/end_weight_update"))["wsm"]["version"] == "2"


def test_a_finish_that_could_not_be_done_is_done_when_it_is_asked_again(
    surfaced: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = surfaced("vllm")
    said(front.post("/start_weight_update"))
    said(front.post("/update_weights", update_info={"version": 2}))
    real = front.commands.commit

    async def lost(*_: Any, **__: Any) -> Any:
        raise RankLostError("rank 1 is gone", ranks=(1,))

    monkeypatch.setattr(front.commands, "commit", lost)
    again = front.post("/finish_weight_update")
    assert (again.status_code, again.headers["retry-after"]) == (503, "1")
    monkeypatch.setattr(front.commands, "commit", real)
    assert said(front.post("/finish_weight_update"))["wsm"]["version"] == "2"
    assert said(front.post("/finish_weight_update"), 409)["error"]["code"] == "no-update-begun"


def test_a_directory_that_was_pulled_is_known_to_the_next_server(surfaced: Callable[..., Any]) -> None:
    body = {"local_checkpoint_dir": "/nowhere/local", "source_dir": "/w", "target_version": 2}
    said(surfaced("sglang").post("/pull_weights", **body))
    updated = surfaced("sglang").post(
        "/update_weights_from_disk", model_path="/nowhere/local", weight_version="2"
    )
    assert said(updated)["wsm"]["version"] == "2"


def test_a_pull_that_fails_leaves_none_before_it_to_be_loaded(surfaced: Callable[..., Any]) -> None:
    def gone(directory: str, label: str | None) -> AdoptedDirectory:
        raise BadInputError(f"{directory} is no directory", code="checkpoint-missing", unfit=True)

    body = {"local_checkpoint_dir": "/nowhere/local", "source_dir": "/w"}
    said(surfaced("sglang").post("/pull_weights", target_version=2, **body))
    front = surfaced("sglang", adopt=gone)
    said(front.post("/pull_weights", target_version=3, **body), 422)
    for named in ({}, {"weight_version": "2"}):
        said(front.post("/update_weights_from_disk", model_path="/nowhere/local", **named), 422)


def test_a_trainer_that_is_gone_once_its_request_is_sent_has_its_update(
    surfaced: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server gives the body only as long as its caller is there; so it is read before anything else."""
    front = surfaced("sglang", "vllm")
    real, gone = front.commands.facts, []

    async def facts() -> Any:
        gone.append(True)
        return await real()

    async def receive() -> Any:
        body = json.dumps({"model_path": "/w/step_2"}).encode()
        return {"type": "http.disconnect"} if gone else {"type": "http.request", "body": body}

    async def send(_: Any) -> None:
        pass

    monkeypatch.setattr(front.commands, "facts", facts)
    path = "/update_weights_from_disk"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": [], "server": ("127.0.0.1", 80), "scheme": "http"}
    asyncio.run(front.app(scope, receive, send))
    assert gone
    assert word_of(front) == "2"


def test_what_was_pulled_is_pulled_again_where_it_stands_no_longer(surfaced: Callable[..., Any]) -> None:
    standing, adopted = {"2"}, []

    def by_name(directory: str, label: str | None) -> AdoptedDirectory:
        adopted.append(directory)
        return AdoptedDirectory(label or "2", f"{directory}@digest of {label}")

    front = surfaced("sglang", adopt=by_name, stands=lambda known: known.label in standing)
    body = {"local_checkpoint_dir": "/nowhere/local", "source_dir": "/w", "target_version": 2}
    asked = {"model_path": "/nowhere/local", "weight_version": "2"}
    said(front.post("/pull_weights", **body))
    said(front.post("/update_weights_from_disk", **asked))
    assert adopted == ["/w/weight_v000002"]
    standing.clear()  # it was retired, or another process published other content under its label
    said(front.post("/update_weights_from_disk", **asked))
    assert adopted == ["/w/weight_v000002"] * 2, "from where it came, and not what stands in its place"


def test_a_trainers_word_means_what_it_called_so_last_and_no_older_version(
    surfaced: Callable[..., Any],
) -> None:
    """The trainer counted from 1 again: its 2 is other content than the published 2, here called 3."""
    relabelled = {"2": "2.reused-00000003"}

    def by_name(directory: str, label: str | None) -> AdoptedDirectory:
        number = label or directory.rpartition("_")[2]
        return AdoptedDirectory(relabelled.get(number, number), None)

    front = surfaced("vllm", "sglang", adopt=by_name)
    name_of(front, "2")
    assert said(front.post("/update_weight_version", new_version="2"))
    assert word_of(front) == "2"
    gone = front.post("/update_weights", update_info={"path": "/w/step_2"})
    assert gone.status_code >= 400, "there is no such version here: the group has the older 2 still"
    for server in (front, surfaced("vllm", "sglang")):
        assert word_of(server) is None, "the group has no weights that its trainer calls 2"
        told = said(server.post("/update_weight_version", new_version="2"), 409)
        assert told["error"]["code"] == "label-differs"
    relabelled.clear()
    said(front.post("/update_weights", update_info={"path": "/w/step_2"}))
    assert word_of(front) == "2"


def name_of(front: Any, version: str) -> None:
    said(front.post("/wsm/v1/update", version=version))


def word_of(front: Any) -> Any:
    words = [
        said(front.ask("GET", path))["weight_version"] for path in ("/weight_info", "/get_weight_version")
    ]
    assert words[0] == words[1]
    return words[0]


def test_what_needed_no_preparation_is_looked_at_again_by_the_end(surfaced: Callable[..., Any]) -> None:
    front = surfaced("sglang")
    for other, status in ((1, 200), (2, 409)):
        said(front.post("/begin_weight_update"))
        assert loaded(front, 1) == "already served"
        said(surfaced("vllm").post("/update_weights", update_info={"version": other}))
        said(front.post("/end_weight_update"), status)


def test_a_failure_is_answered_again_until_the_files_or_the_server_s_group_change(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    front = surfaced("sglang")
    part = living.shard_files(3, 0)[0]
    whole = part.read_bytes()
    part.write_bytes(whole[:-4] + bytes(byte ^ 255 for byte in whole[-4:]))
    asked = {"model_path": "/w/step_3"}
    first = said(front.post("/update_weights_from_disk", **asked), 422)
    part.write_bytes(whole)
    before = living.controller().status().sequence
    for server in (front, surfaced("sglang")):
        again = said(server.post("/update_weights_from_disk", **asked), 422)
        assert (again["error"]["code"], again["message"]) == (first["error"]["code"], first["message"])
    assert living.controller().status().sequence == before, "it reached no rank"
    unknown = surfaced("sglang", adopt=lambda directory, label: AdoptedDirectory(label or "3", None))
    said(unknown.post("/update_weights_from_disk", **asked))  # its digest is not known: it is loaded
