"""Trainers' verbs command a real group: each surface in the order in which its clients send them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from living_group import LivingGroup

from wsm.errors import BadInputError
from wsm.http.surfaces import SURFACES, AdoptedDirectory, SurfaceOptions, adopting
from wsm.strategies import AdoptSettings

pytestmark = pytest.mark.processes


def by_number(directory: str, label: str | None) -> AdoptedDirectory:
    """Stands in for adopting: the number at the end of a directory's name is a version that is published."""
    number = re.search(r"(\d+)$", Path(directory).name)
    if number is None:
        raise BadInputError(f"{directory} is no directory", code="checkpoint-missing", unfit=True)
    return AdoptedDirectory(label or str(int(number[1])), f"{directory}@{number[1]}")


@pytest.fixture
def surfaced(make_front: Callable[..., Any]) -> Callable[..., Any]:
    """`surfaced("sglang", ...)`: an app with these surfaces, the first of them primary."""

    def make(*names: str, **options: Any) -> Any:
        given = SurfaceOptions(**{"adopt": by_number, **options})
        return make_front(surfaces=[SURFACES[name](given) for name in names])

    return make


def said(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_native_api_takes_a_directory_below_the_roots_that_its_surfaces_have(
    surfaced: Callable[..., Any], make_front: Callable[..., Any]
) -> None:
    front = surfaced("vllm", adopt=lambda *asked: by_number(*asked)._replace(warning="its files are links"))
    receipt = said(front.post("/wsm/v1/update", directory="/exchange/step_000002"))["receipt"]
    assert (receipt["version"], receipt["warning"]) == ("2", "its files are links")
    bad = said(front.post("/wsm/v1/update", directory="/exchange/other"), 422)
    assert bad["error"]["code"] == "checkpoint-missing"
    without = said(make_front().post("/wsm/v1/update", directory="/exchange/step_000002"), 409)
    assert without["error"]["code"] == "no-adopt-root"


@pytest.mark.slow
def test_fastdeploys_pause_and_resume_are_idempotent_and_concurrent(surfaced: Callable[..., Any]) -> None:
    front = surfaced("fastdeploy")

    def paused() -> bool:
        answer = said(front.ask("GET", "/v1/is_paused"))
        assert answer["status"] == "success"
        return bool(answer["result"]["is_paused"])

    assert not paused()
    for verb, held in (("pause", True), ("resume", False)):
        for answer in front.ask_all(*[("POST", f"/v1/{verb}", {})] * 5):
            assert (said(answer)["status"], answer.json()["error_message"]) == ("success", None)
        assert paused() is held
        assert said(front.post(f"/v1/{verb}"))["status"] == "success"
    for verb in ("pause", "resume", "resume", "pause"):
        said(front.post(f"/v1/{verb}"))
    assert paused()
    assert front.ask("GET", "/health").status_code == 200, "its weights are there"
    assert front.post("/v1/chat/completions").status_code == 503, "a request in a pause fails"
    said(front.post("/v1/resume"))
    assert front.post("/v1/chat/completions").status_code == 404, "no engine is behind"


@pytest.mark.slow
def test_fastdeploys_update_needs_a_pause_and_its_wakeup_ends_one(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    front = surfaced("fastdeploy")
    refused = said(front.post("/v1/update_weights", version="2"), 500)
    assert (refused["status"], refused["result"]) == ("error", None)
    assert "pause" in refused["error_message"].lower()
    assert said(front.post("/v1/update_weights", version=[2]), 400)["status"] == "error"
    said(front.post("/v1/pause"))
    unknown = said(front.post("/v1/update_weights", version="2", transfer_mode="bogus"), 400)
    assert "one of host, ipc, gpu_direct, rdma, gdr" in unknown["error_message"]
    unheard = said(front.post("/v1/update_weights", version="2", transfer_mode="gdr"), 500)
    assert "ipc_snapshot has no transfer modes" in unheard["error_message"], "the mode goes to the ranks"
    updated = said(front.post("/v1/update_weights", version="2", verify_checksum=None))
    keys = {"sync_cost", "update_cost", "total_cost", "version", "rank"}
    assert [(set(each), each["version"], each["rank"]) for each in updated["result"]] == [
        (keys, "2", 0),
        (keys, "2", 1),
    ]
    assert all(each["total_cost"] >= each["update_cost"] > 0 for each in updated["result"])
    assert updated["wsm"]["version"] == "2"
    again = said(front.post("/v1/update_weights", version="2"))
    assert [each["rank"] for each in again["result"]] == [0, 1], "of the version that is there"
    assert said(front.ask("GET", "/v1/is_paused"))["result"]["is_paused"], "an update resumes nothing"
    said(front.post("/v1/sleep"))
    health = front.ask("GET", "/health")
    assert (health.status_code, health.content) == (304, b"")
    said(front.post("/v1/sleep?tags=weight"))
    assert not said(front.post("/v1/wakeup?tags=kv_cache"))["result"]["serving"]
    assert said(front.ask("GET", "/v1/is_paused"))["result"]["is_paused"]
    assert said(front.post("/v1/wakeup?tags=weight"))["result"]["serving"]
    said(front.post("/v1/pause"))
    assert said(front.post("/v1/wakeup"))["result"]["serving"], "nothing was asleep, and its pause ends"
    assert said(front.post("/v1/sleep?tags=weightless"), 400)["status"] == "error"
    assert front.ask("GET", "/health").status_code == front.ask("POST", "/ping").status_code == 200
    listed = said(front.ask("GET", "/load"))["routes"]
    assert {"path": "/v1/pause", "methods": ["POST"], "tags": []} in listed
    living.assert_steps_are_pure()


@pytest.mark.slow
def test_fastdeploys_wakeup_brings_what_was_served_last_or_else_what_is_announced(
    make_front: Callable[..., Any], tmp_path: Path
) -> None:
    group = LivingGroup(tmp_path, load=0.5)
    with contextlib.closing(group):
        group.boot(1)
        group.publish(2)
        front = type(make_front())(group, surfaces=[SURFACES["fastdeploy"](SurfaceOptions())])
        with contextlib.closing(front):
            said(front.post("/v1/pause"))
            said(front.post("/v1/update_weights", version="2"))
            for seed in ("other", "third"):
                said(front.post("/v1/sleep"))
                published = group.publish(2, seed=seed)
                group.publish(9, seed="announced")
                woken = said(front.post("/v1/wakeup"))["result"]
                assert (woken["version"], woken["serving"]) == ("2", True)
                assert woken["manifest_digest"] == published.manifest_digest, "what lies there now"
            said(front.post("/v1/sleep"))
            shutil.rmtree(group.snapshots / "versions" / "2")
            assert said(front.post("/v1/wakeup"))["result"]["version"] == "9"


@pytest.mark.slow_but
@pytest.mark.parametrize("generation", ["2.4", "2.5", "2.6"])
def test_fastdeploys_legacy_gets_clear_and_update_and_are_idempotent(
    surfaced: Callable[..., Any], generation: str
) -> None:
    front = surfaced("fastdeploy", fastdeploy_generation=generation)
    for verb, serving in (("clear_load_weight", False), ("update_model_weight", True)):
        for _ in range(2):
            answer = front.ask("GET", f"/{verb}")
            assert answer.status_code == 200, answer.text
            assert answer.content == b"" if generation == "2.4" else answer.json()["dp_rank"] == 0
            assert front.ask("GET", "/health").status_code == (200 if serving else 304)


@pytest.mark.slow
def test_slime_updates_from_its_directory_and_the_group_is_held_in_between(
    surfaced: Callable[..., Any], living: LivingGroup, tmp_path: Path
) -> None:
    front = surfaced("sglang", served_model_name="policy", server_info={"dtype": "bfloat16"})
    info = said(front.ask("GET", "/server_info"))
    assert (info["tp_size"], info["disaggregation_mode"], info["dtype"]) == (2, "null", "bfloat16")
    assert info == said(front.ask("GET", "/get_server_info"))
    assert front.ask("GET", "/health_generate").status_code == 200
    for number in (2, 3):
        directory = tmp_path / f"weight_v{number:06d}"
        directory.mkdir()
        assert said(front.post("/pause_generation"))["status"] == "ok"
        assert front.ask("GET", "/flush_cache").status_code == 200
        held = {"model_path": str(directory), "weight_version": str(number)}
        updated = said(front.post("/update_weights_from_disk", **held))
        assert (updated["success"], updated["wsm"]["version"]) == (True, str(number))
        assert said(front.ask("GET", "/get_weight_version"))["weight_version"] == str(number)
        assert (
            front.ask("GET", "/health").status_code == front.ask("GET", "/health_generate").status_code == 200
        )
        shutil.rmtree(directory)
        assert said(front.post("/continue_generation"))["wsm"]["serving"]
    assert said(front.ask("GET", "/model_info"))["weight_version"] == "3"
    assert said(front.ask("GET", "/v1/models"))["data"][0]["id"] == "policy"
    (worker,) = said(front.ask("GET", "/workers"))["workers"]
    assert worker["url"] == "http://127.0.0.1:8000"
    said(front.post("/workers", url=worker["url"]))
    assert said(front.post("/workers", url="http://127.0.0.1:1"), 409)["error"]["code"] == "not-this-worker"
    assert front.ask("DELETE", f"/workers/{worker['id']}").status_code == 200
    assert said(front.ask("GET", "/v1/loads"))["loads"][0]["num_reqs"] == 0
    living.assert_steps_are_pure()


def test_slime_pulls_before_the_pause_and_its_destination_means_what_was_pulled(
    surfaced: Callable[..., Any], tmp_path: Path
) -> None:
    front = surfaced("sglang")
    local = tmp_path / "local"
    body = {"local_checkpoint_dir": str(local), "source_dir": str(tmp_path), "target_version": 2}
    said(front.post("/pull_weights", **body))
    assert not local.exists(), "nothing is written where the client says"
    said(front.post("/pause_generation"))
    said(front.post("/update_weights_from_disk", model_path=str(local), weight_version="2"))
    said(front.post("/continue_generation"))
    assert said(front.ask("GET", "/weight_version"))["weight_version"] == "2"
    other = front.post("/update_weights_from_disk", model_path=str(local), weight_version="3")
    assert (other.status_code, said(other, other.status_code)["success"]) == (422, False)


def test_slimes_changes_are_refused_before_the_pause_with_the_reason_and_a_way_out(
    surfaced: Callable[..., Any], living: LivingGroup, tmp_path: Path
) -> None:
    settings = AdoptSettings(tmp_path / "models", [tmp_path], ranks=1)
    front = surfaced("sglang", adopt=adopting(settings))
    body = {"local_checkpoint_dir": str(tmp_path / "local"), "source_dir": str(tmp_path)}
    changes = tmp_path / "weight_v000001"
    changes.mkdir()
    index = {"metadata": {"base_version": "000000", "delta_encoding": "xor"}, "weight_map": {}}
    (changes / "model.safetensors.index.json").write_text(json.dumps(index))
    before = living.controller().status().sequence
    for number in (0, 1):  # slime begins with 0, by which it means what its server was started with
        refused = said(front.post("/pull_weights", **body, target_version=number), 501)
        assert not refused["success"]
        assert "--update-weight-mode full" in refused["message"]
    assert (
        said(front.post("/pull_weights", **body, target_version=2), 422)["error"]["code"]
        == "checkpoint-missing"
    )
    assert living.controller().status().sequence == before


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("query", "in_flight", "kv_policy"),
    [
        ("", "abort", "drop"),
        ("mode=abort&clear_cache=true", "abort", "drop"),
        ("mode=wait", "drain", "drop"),
        ("mode=keep", "keep", "drop"),
        ("mode=keep&clear_cache=false", "keep", "keep"),
        ("mode=in_place", "keep", "keep"),
        ("mode=retract", "keep", "drop"),
    ],
)
def test_a_pause_says_what_becomes_of_requests_and_blocks(
    surfaced: Callable[..., Any], query: str, in_flight: str, kv_policy: str
) -> None:
    front = surfaced("vllm")
    said(front.ask("POST", f"/pause?{query}"))
    hold = said(front.ask("GET", "/wsm/v1/status"))["hold"]
    assert (hold["in_flight"], hold["kv_policy"]) == (in_flight, kv_policy)


class Requests:
    """Stands in for the requests of a server that generates text itself."""

    def __init__(self, running: int) -> None:
        self.running = running

    async def count(self) -> tuple[int, int]:
        return self.running, 0


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("paused", "running", "status"),
    [
        (None, 0, 200),
        (None, 2, 400),
        ("mode=abort", 0, 200),
        ("mode=keep", 2, 200),
        ("mode=keep&clear_cache=false", 0, 400),
        ("mode=wait&clear_cache=false", 0, 400),
    ],
)
def test_a_flush_is_done_once_no_block_of_older_weights_is_left(
    surfaced: Callable[..., Any], paused: str | None, running: int, status: int
) -> None:
    front = surfaced("vllm", "sglang", requests=Requests(running))
    if paused is not None:
        said(front.ask("POST", f"/pause?{paused}"))
    assert front.ask("GET", "/flush_cache").status_code == status


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("body", "version"),
    [
        ({"update_info": {"path": "/w/step_2"}}, "2"),
        ({"update_info": {"path": "/w/x_3", "version": "2"}}, "2"),
        ({"update_info": {"version": 3}}, "3"),
        ({"weight_dir": "/w/step_2"}, "2"),
        ({"weight_dir": None}, None),
        ({"update_info": {"names": ["w"], "dtype_names": ["bf16"]}}, None),
        ({}, None),
    ],
)
def test_an_update_names_a_directory_or_a_version_or_is_a_push(
    surfaced: Callable[..., Any], body: dict[str, Any], version: str | None
) -> None:
    answer = surfaced("vllm").post("/update_weights", **body)
    if version is None:
        assert said(answer, 400)["error"]["code"] == "push-unverifiable"
    else:
        assert said(answer)["wsm"]["version"] == version


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 200),
        ({"init_info": {}}, 200),
        ({"backend": "disk"}, 200),
        ({"init_info": {"backend": "disk"}}, 200),
        ({"type": "filesystem", "timeout": 1200}, 200),
        ({"init_info": {"backend": "nccl"}}, 400),
        ({"init_info": {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1}}, 400),
        ({"init_info": 7}, 400),
        ({"host": "127.0.0.1", "port": 29501, "timeout": 1200}, 400),
    ],
)
def test_only_a_transfer_by_files_needs_no_setting_up(
    surfaced: Callable[..., Any], body: dict[str, Any], status: int
) -> None:
    assert surfaced("prime-rl").post("/init_broadcaster", **body).status_code == status


def test_what_adopting_warns_of_stands_in_the_answer(surfaced: Callable[..., Any]) -> None:
    def linked(directory: str, label: str | None) -> AdoptedDirectory:
        return by_number(directory, label)._replace(warning=f"linked: the files of {directory}")

    front = surfaced("sglang", adopt=linked)
    answer = said(front.post("/update_weights_from_disk", model_path="/w/step_2"))
    assert answer["wsm"]["warning"] == "linked: the files of /w/step_2"


@pytest.mark.slow
def test_sglangs_memory_goes_and_comes_by_halves_in_the_version_that_was_held(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    front = surfaced("sglang")
    said(front.post("/update_weights_from_disk", model_path="/w/step_2", abort_all_requests=True))
    for tags in ({}, {"tags": ["kv_cache"]}, {"tags": None}):
        assert front.post("/release_memory_occupation", **tags).json() is None
    assert front.ask("GET", "/flush_cache").status_code == 200
    for tags in (["cuda_graph"], ["weights"], ["kv_cache"], ["kv_cache", "weights"]):
        assert front.post("/resume_memory_occupation", tags=tags).json() is None
    assert said(front.ask("GET", "/get_weight_version"))["weight_version"] == "2", (
        "3 is newer, and was not held"
    )
    living.await_steps()
    assert front.ask("POST", "/flush_cache").status_code == 200
    living.await_steps()
    checked = said(front.post("/weights_checker", action="checksum"))
    said(front.post("/weights_checker", action="compare", baseline=checked["per_engine_checksum"]))
    said(front.post("/weights_checker", action="compare", baseline="other"), 400)
    said(front.post("/weights_checker", action="snapshot"), 501)


@pytest.mark.slow
def test_an_update_in_parts_is_prepared_by_its_middle_and_decided_by_its_end(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    front = surfaced("vllm", "sglang")
    assert said(front.post("/finish_weight_update"), 409)["error"]["code"] == "no-update-begun"
    said(front.post("/init_weight_transfer_engine", init_info={}))
    said(front.ask("POST", "/pause?mode=keep"))
    said(front.post("/start_weight_update", is_checkpoint_format=True))
    assert said(front.post("/finish_weight_update"), 409)["error"]["code"] == "nothing-prepared"
    prepared = said(front.post("/update_weights", update_info={"path": "/w/step_2"}))
    assert prepared["wsm"]["outcome"] == "prepared"
    assert said(front.ask("GET", "/weight_info"))["weight_version"] == "1", "not decided yet"
    assert (
        said(front.post("/finish_weight_update", weight_version="9"), 409)["error"]["code"] == "label-differs"
    )
    finished = said(front.post("/finish_weight_update", weight_version="2"))
    assert (finished["wsm"]["version"], finished["wsm"]["serving"]) == ("2", False)
    said(front.post("/start_weight_update"))
    said(front.post("/update_weights", update_info={"version": 3}))
    said(front.post("/start_weight_update"))  # a trainer that began anew takes back what was prepared
    said(front.post("/update_weights", update_info={"version": 2}))
    said(front.post("/finish_weight_update"))
    assert said(front.ask("POST", "/resume"))["wsm"]["serving"]
    assert said(front.post("/update_weight_version", new_version=2))["new_version"] == "2"
    assert (
        said(front.post("/update_weight_version", new_version="57"), 409)["error"]["code"] == "label-differs"
    )
    said(front.post("/begin_weight_update", selector="all"))
    said(front.post("/update_weights_from_disk", model_path="/w/step_3"))
    assert said(front.post("/end_weight_update"))["wsm"]["version"] == "3"
    living.await_steps()
    living.assert_steps_are_pure()


@pytest.mark.slow
def test_prime_rl_updates_and_its_resume_behind_a_failed_update_serves_nothing_old(
    surfaced: Callable[..., Any],
) -> None:
    front = surfaced("prime-rl", served_model_name="m")
    assert front.ask("GET", "/health").status_code == 200
    assert said(front.ask("GET", "/v1/models"))["data"][0]["id"] == "m"
    said(front.post("/init_broadcaster", host="127.0.0.1", port=29501), 400)
    assert said(front.ask("GET", "/liveness"))["status"] == "ok"
    for number in (2, 3):
        said(front.ask("POST", "/pause?mode=keep&clear_cache=false"))
        assert (
            said(front.post("/update_weights", weight_dir=f"/out/broadcasts/step_{number}"))["status"] == "ok"
        )
        said(front.ask("POST", "/resume"))
    said(front.ask("POST", "/pause?mode=keep&clear_cache=false"))
    gone = front.post("/update_weights", weight_dir="/out/broadcasts/step_9")
    assert gone.status_code == 422, "no retry can help"
    assert said(front.ask("POST", "/resume"), 409)["error"]["code"] == "hold-closed", "it counts on 9 already"
    assert "/update_weights failed" in front.post("/v1/completions").text
    said(front.ask("POST", "/pause?mode=keep&clear_cache=false"))  # a new trainer, or its next step
    said(front.post("/update_weights", weight_dir="/out/broadcasts/step_3"))
    assert said(front.ask("POST", "/resume"))["wsm"]["version"] == "3", "it has said itself that it means 3"


def test_areal_updates_over_vllm_and_sleeps(surfaced: Callable[..., Any]) -> None:
    front = surfaced("areal", "vllm")
    assert said(front.post("/areal_pause_generation"))["success"]
    assert (
        said(front.post("/areal_update_weights", model_path="/x/weight_update_v2"))["wsm"]["version"] == "2"
    )
    assert said(front.post("/areal_continue_generation"))["wsm"]["serving"]
    assert front.ask("POST", "/sleep", json={}).status_code == 200
    assert said(front.ask("GET", "/is_sleeping"))["is_sleeping"]
    assert front.ask("POST", "/wake_up?tags=weights&tags=kv_cache").status_code == 200
    assert not said(front.ask("GET", "/is_sleeping"))["is_sleeping"]
    said(front.post("/areal_update_weights_xccl"), 400)


@pytest.mark.slow
def test_vllms_sleep_to_host_memory_is_refused_unless_an_option_says_otherwise(
    surfaced: Callable[..., Any],
) -> None:
    front = surfaced("vllm")
    assert said(front.ask("POST", "/sleep"), 400)["error"]["code"] == "offload-unsupported"
    other = surfaced("areal", sleep_level_1_as_2=False)
    assert said(other.ask("POST", "/sleep"), 400)["error"]["use_instead"]
    assert surfaced("vllm", sleep_level_1_as_2=True).ask("POST", "/sleep?level=1").status_code == 200
    assert front.ask("POST", "/wake_up").status_code == 200
    assert front.ask("POST", "/sleep?level=2").status_code == 200
    assert front.ask("POST", "/wake_up").status_code == 200
    assert front.post("/reset_prefix_cache").status_code == 200
    checksums = said(front.post("/weight_checker", action="checksum"))["checksums"]
    assert said(front.post("/weight_checker", action="compare", baseline=checksums))["match"]


@pytest.mark.slow
def test_what_would_push_over_nccl_is_refused_before_it_forms_its_group(surfaced: Callable[..., Any]) -> None:
    """TRL and SkyRL ask for the world size first, and neither goes on without one."""
    for path in ("/get_world_size", "/get_world_size/", "/get_world_size?include_dp=true"):
        refused = said(surfaced("vllm").ask("GET", path), 400)
        assert "world_size" not in refused
        assert refused["error"]["code"] == "push-unverifiable"


@pytest.mark.slow
def test_skyrls_order_of_calls_is_served_or_refused_and_leaves_its_resume_nothing_old(
    surfaced: Callable[..., Any],
) -> None:
    front = surfaced("vllm")
    assert front.ask("POST", "/sleep?level=2").content == b"", "it reads no body of length 0"
    for tags in ("tags=weights", "tags=kv_cache"):
        assert front.ask("POST", f"/wake_up?{tags}").content == b""
    assert front.post("/reset_prefix_cache", reset_running_requests=False).status_code == 200
    pushes: list[tuple[str, dict[str, Any]]] = [
        (
            "/collective_rpc",
            {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}},
        ),
        ("/update_weights", {"update_info": {"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]]}}),
        ("/fetch_weights", {"target_version": 2, "sync_dir": "/w"}),
    ]
    for path, body in pushes:
        said(front.ask("POST", "/pause?mode=keep&clear_cache=false"))
        refused = said(front.post(path, **body), 400)
        assert refused["error"]["message"], "what its client raises with"
        assert said(front.ask("POST", "/resume"), 409)["error"]["code"] == "hold-closed", "in its finally"
        said(front.post("/update_weights", update_info={"path": "/w/step_2"}))
        assert said(front.ask("POST", "/resume"))["wsm"]["serving"]


@pytest.mark.slow
def test_verls_order_of_calls_is_served_but_for_its_pickles_which_close_the_group_it_never_paused(
    surfaced: Callable[..., Any],
) -> None:
    front = surfaced("sglang")
    assert front.ask("GET", "/health_generate").status_code == 200
    assert front.ask("GET", "/flush_cache").status_code == 200
    assert front.post("/release_memory_occupation", tags=["kv_cache", "weights"]).json() is None
    assert front.post("/resume_memory_occupation", tags=["weights"]).json() is None
    pickled = {"serialized_named_tensors": ["gASV"], "load_format": None, "flush_cache": False}
    assert not said(front.post("/update_weights_from_tensor", **pickled), 501)["success"], "its client raises"
    assert not said(front.ask("GET", "/wsm/v1/status"))["serving"], "and the group has no KV cache yet"
    assert front.post("/resume_memory_occupation", tags=["kv_cache"]).json() is None, "as one that goes on"
    assert not said(front.ask("GET", "/wsm/v1/status"))["serving"], "the old weights under a new name"
    assert said(front.post("/continue_generation"), 409)["error"]["code"] == "hold-closed"
    assert said(front.post("/wsm/v1/release", force=True))["receipt"]["outcome"] == "released"
    assert front.ask("GET", "/flush_cache").status_code == 200


@pytest.mark.slow
def test_a_trainer_that_does_not_look_at_refusals_leaves_the_group_held_and_closed(
    surfaced: Callable[..., Any], living: LivingGroup
) -> None:
    front = surfaced("vllm")  # the order of TRL's asynchronous trainer, which looks at no status
    refused = said(
        front.post("/init_weight_transfer_engine", init_info={"master_port": 1, "world_size": 3}), 400
    )
    assert refused["error"]["use_instead"]
    living.await_steps()
    said(front.ask("POST", "/pause?mode=keep"))
    said(front.post("/start_weight_update", is_checkpoint_format=True))
    push = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]], "packed": True}
    assert said(front.post("/update_weights", update_info=push), 400)["held"]
    said(front.post("/finish_weight_update"), 409)
    blind = said(front.ask("POST", "/resume"), 409)
    assert blind["error"]["code"] == "hold-closed"
    text = front.post("/v1/completions", prompt=[1])
    assert (text.status_code, text.headers["retry-after"]) == (503, "1")
    assert "/update_weights" in text.text, "it says why"
    successor = surfaced("vllm")  # the server was started again
    assert said(successor.ask("POST", "/resume"), 409)["error"]["code"] == "hold-closed"
    assert said(successor.ask("POST", "/pause"))["status"] == "paused", (
        "any client of the surface may pause again"
    )
    said(successor.ask("POST", "/resume"), 409)
    said(successor.post("/update_weights", update_info={"path": "/w/step_2"}))
    assert said(successor.ask("POST", "/resume"))["wsm"]["version"] == "2"
    for path in ("/init_communicator/", "/update_named_param/", "/collective_rpc"):
        assert not said(successor.post(path), 400)["held"], "a group that is not held stays as it is"
