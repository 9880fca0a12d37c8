"""FastDeploy's control requests (V1): each is one command of the group, which ends alike on every rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from living_group import eventually

from tests.raising import raising
from wsm.actions import names
from wsm.actions.base import Action, ActionContext, Plan, Plans
from wsm.fastdeploy._control_calls import DEADLINES_S, ControlCalls, ControlRequest
from wsm.signals.errors import RoleBusyError
from wsm.states.errors import CommandOpenError
from wsm.states.plan_key import UPDATE
from wsm.states.vocabulary import Tag

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

BOTH = "weight,kv_cache"


@pytest.fixture
def job(make_job):
    return make_job(v1=True)


def sleeping(said) -> set[tuple[bool, bool]]:
    return {tuple(each["sleeping"]) for each in said}


def codes(said) -> list[str]:
    return [each.get("code") for each in said]


@pytest.mark.slow
def test_sleep_wakeup_and_update_are_one_command_each_with_what_fastdeploy_answers(job):
    watching = job.controller()
    slept = job.controls("sleep", tags=BOTH)
    assert (sleeping(slept), codes(slept)) == ({(True, True)}, [None, None])
    assert {tuple(said["held"]) for said in slept} == {()}
    assert [said["calls"].count("clear_cache") for said in slept] == [1, 1]
    status = watching.status()
    assert (status.state, status.sequence) == ("CLEARED", 3)  # the load at start, what was found, the sleep
    assert job.reads() == [0]  # the words are left alone
    assert sleeping(job.controls("sleep", tags=BOTH)) == {(True, True)}
    job.publish(2)
    woken = job.controls("wakeup", tags=BOTH)
    assert (sleeping(woken), {said["version"] for said in woken}) == ({(False, False)}, {"1"})
    for said in woken:
        assert said["result"] == {"version": "1"}
        assert said["calls"] == ["reset_share_inputs", "initialize_kv_cache", "capture_model"]
    job.publish(3)
    updated = job.controls("update_weights", version="3")
    for rank, said in enumerate(updated):
        assert (said["result"]["version"], said["result"]["rank"], said["version"]) == ("3", rank, "3")
        assert {"sync_cost", "update_cost", "total_cost"} <= said["result"].keys()
        assert "capture_model" in said["calls"]
    assert watching.status().sequence == 5
    assert {said["version"] for said in job.each_says("stepped")} <= {"1", "2", "3"}
    assert job.reads() == [0]
    job.end()


@pytest.mark.slow
def test_a_draft_and_experts_of_two_parts_go_and_come_with_what_the_method_itself_does(make_job):
    """Expert parallelism over two parts of a job is one group; each unit runs once, in FastDeploy's order."""
    job = make_job(v1=True, whole=True, parts=2, part=1)
    assert job.controller().status().version == "1"
    teardown = [
        *("clear_buffer", "shut down ep", "shut down tp", "shut down world"),
        *("clear_mtp_cache", "clear_cache"),
    ]
    setup = [
        *("reset_share_inputs", "reset_model_inputs", "mtp.initialize_kv_cache 4", "initialize_kv_cache"),
        *("restart world", "restart tp", "restart ep", "recreate_buffer", "capture_model"),
    ]
    for point in ("", "wakeup is half done"):
        slept = job.controls("sleep", tags=BOTH)
        assert (sleeping(slept), codes(slept)) == ({(True, True)}, [None, None])
        for said in slept:
            assert [call for call in said["calls"] if call in teardown] == teardown
        if point:
            job.order(1, point)
            failed = job.controls("wakeup", tags=BOTH)
            assert (sleeping(failed), codes(failed)) == ({(True, True)}, ["rank-failed", "call-failed"])
        woken = job.controls("wakeup", tags=BOTH)
        assert (sleeping(woken), codes(woken)) == ({(False, False)}, [None, None])
        for said in woken:
            assert [call for call in said["calls"] if call in setup] == setup
    job.order(1, "update ends")
    assert sleeping(job.controls("update_weights", version="1")) == {(True, True)}
    assert sleeping(job.controls("wakeup", tags=BOTH)) == {(False, False)}
    job.each_says("stepped")
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["weight", "kv_cache"])
def test_tags_say_which_half_goes_and_comes(job, first):
    halves = {"weight": (True, False), "kv_cache": (False, True)}
    assert sleeping(job.controls("sleep", tags=first)) == {halves[first]}
    assert sleeping(job.controls("sleep", tags=BOTH)) == {(True, True)}  # FastDeploy's own stops there
    alone = job.controls("wakeup", tags="weight")
    assert codes(alone) == ["rank-failed", "call-failed"]
    assert all("kv_cache" in said["error"] for said in alone)
    assert sleeping(alone) == {(True, True)}
    assert sleeping(job.controls("wakeup", tags="kv_cache")) == {(True, False)}
    assert sleeping(job.controls("wakeup", tags=BOTH)) == {(False, False)}
    assert sleeping(job.controls("sleep", tags="draft")) == {(False, False)}
    job.each_says("stepped")
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_method_that_fails_after_any_rank_touched_weights_leaves_no_rank_that_steps(job, rank):
    job.publish(2)
    for point in ("update ends", "update begins"):
        job.order(rank, point)
        failed = job.controls("update_weights", version="2")
        assert codes(failed) == ["rank-failed", "call-failed"]
        assert all(f"wants {point}" in said["error"] for said in failed)
        (sleeps,) = {said["sleeping"][0] for said in failed}
        assert sleeps or point == "update begins"  # the other rank may have touched its weights by then
        assert {not said["held"] for said in failed} == {sleeps}
        woken = job.controls("wakeup", tags=BOTH)
        assert sleeping(woken) == {(False, False)}
    job.end()


@pytest.mark.slow
def test_a_sleep_of_both_halves_repairs_a_rank_whose_teardown_failed(job):
    for point in ("update ends", "release"):
        job.order(1, point)
    failed = job.controls("update_weights", version="1")
    assert codes(failed) == ["rank-failed", "call-failed"]
    assert sleeping(failed) <= {(True, True), (True, False)}
    assert failed[1]["held"]  # its weights are still there, so that it may not be left as it is
    assert None not in codes(job.controls("wakeup", tags=BOTH))
    slept = job.controls("sleep", tags=BOTH)
    assert (codes(slept), sleeping(slept), [said["held"] for said in slept]) == (
        [None] * 2,
        {(True, True)},
        [[], []],
    )
    assert sleeping(job.controls("wakeup", tags=BOTH)) == {(False, False)}
    job.each_says("stepped")
    job.end()


def test_a_method_that_fails_before_any_rank_touched_weights_leaves_the_old_ones_serving(job):
    for rank in (0, 1):
        job.order(rank, "update begins")
    failed = job.controls("update_weights", version="1")
    assert codes(failed) == ["rank-failed", "call-failed"]
    assert (sleeping(failed), {said["version"] for said in failed}) == ({(False, False)}, {"1"})
    job.each_says("stepped")
    missing = job.controls("update_weights", version="7")
    assert None not in codes(missing)
    assert sleeping(missing) == {(False, False)}
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["sleep is half done", "wakeup is half done"])
def test_what_a_method_did_to_a_cache_before_it_failed_is_known(job, point):
    method = point.split()[0]
    if method == "wakeup":
        job.controls("sleep", tags=BOTH)
    job.order(1, point)
    failed = job.controls(method, tags=BOTH)
    assert codes(failed) == ["rank-failed", "call-failed"]
    assert sleeping(failed) == {(True, True)}
    assert sleeping(job.controls("wakeup", tags=BOTH)) == {(False, False)}
    job.each_says("stepped")
    job.end()


@pytest.mark.slow_but
@pytest.mark.parametrize("point", ["update begins", "update ends"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_dies_inside_a_method_lets_no_other_one_wait_or_step(job, lost, point):
    job.order(lost, f"{point} is its end")
    job.control("update_weights", version="1")
    (said,) = [job.programs[1 - lost].says("controlled")]
    assert said["code"] in ("rank-gone", "call-failed", "rank-died")
    assert said["sleeping"] == [True, True]


@pytest.mark.slow
def test_a_rank_that_hangs_in_a_method_is_named_before_the_engine_gives_up(make_job):
    """Rank 0 answers at its deadline; the group is asked again once the rank has come back."""
    job = make_job(v1=True, deadlines_s={"update_weights": 1.0})
    hangs = job.order(1, "update begins hangs")
    job.control("update_weights", version="1")
    said = job.programs[0].says("controlled")
    assert "rank 1" in said["error"]
    assert said["sleeping"][0] is True
    hangs.unlink()
    assert job.programs[1].says("controlled")["sleeping"][0] is True
    assert sleeping(job.controls("wakeup", tags=BOTH)) == {(False, False)}
    job.each_says("stepped")
    job.end()


@pytest.mark.slow
def test_a_command_of_another_process_is_refused_while_a_request_is_open(make_job):
    job = make_job(v1=True, polls=True)
    hangs = job.order(1, "update begins hangs")
    job.control("update_weights", version="1")
    trainer = job.controller()
    eventually(lambda: trainer.status().sequence == 3 and not trainer.status().over)
    with raising((CommandOpenError, RoleBusyError)):
        trainer.update(1, force=True)
    hangs.unlink()
    assert codes(job.each_says("controlled")) == [None, None]
    job.publish(2)
    assert trainer.update(2).version == "2"
    assert job.controls("sleep", tags=BOTH)[0]["version"] is None
    with raising("loop-does-not-poll", match="wakeup"):
        trainer.update(2)
    assert {said["version"] for said in job.controls("wakeup", tags=BOTH)} == {"2"}
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sleep", "update_weights"])
def test_a_command_that_comes_just_behind_a_request_that_left_no_weights_is_refused_at_once(make_job, method):
    """The ranks of a runner that sleeps look at no command: one that is written waits for its deadline."""
    job = make_job(v1=True, polls=True)
    trainer = job.controller()
    settles = job.order(0, "settles hangs")
    if method == "sleep":
        job.control("sleep", tags=BOTH)
    else:
        job.order(1, "update ends")
        job.control("update_weights", version="1")
    eventually(lambda: trainer.status().over and trainer.status().state == "CLEARED")
    with raising("loop-does-not-poll", match=method):
        trainer.update(1, deadline_s=5.0)
    settles.unlink()
    assert sleeping(job.each_says("controlled")) == {(True, True)}
    assert sleeping(job.controls("wakeup", tags=BOTH)) == {(False, False)}
    job.publish(2)
    assert trainer.update(2, force=True).version == "2"
    job.end()


def both_methods(tags="weight,kv_cache"): ...


def update_weights(version=None, verify_checksum=False, transfer_mode=None, rsync_config=None): ...


WEIGHTS, CACHE = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})


@pytest.mark.parametrize(
    ("body", "arguments", "tags", "version", "options"),
    [
        (both_methods, {}, WEIGHTS | CACHE, None, {}),
        (both_methods, {"tags": None}, WEIGHTS | CACHE, None, {}),
        (both_methods, {"tags": "weight"}, WEIGHTS, None, {}),
        (both_methods, {"tags": " kv_cache , weight"}, WEIGHTS | CACHE, None, {}),
        (both_methods, {"tags": ["kv_cache"]}, CACHE, None, {}),
        (update_weights, {}, WEIGHTS, None, {"verify_checksum": False}),
        (update_weights, {"version": ""}, WEIGHTS, None, {"verify_checksum": False}),
        (
            update_weights,
            {"version": "7", "verify_checksum": True, "transfer_mode": "gdr", "rsync_config": {"index": 1}},
            WEIGHTS,
            "7",
            {"verify_checksum": True, "transfer_mode": "gdr", "rsync_config": {"index": 1}},
        ),
    ],
)
def test_a_request_says_what_its_method_takes_with_the_methods_own_defaults(
    body, arguments, tags, version, options
):
    method = "update_weights" if body is update_weights else "sleep"
    assert ControlRequest.of(method, body, **arguments) == ControlRequest(method, tags, version, options)


@pytest.mark.parametrize("tags", ["weights", "", "weight,", 5, [5], ["weight", ["kv_cache"]]])
def test_tags_that_are_none_are_refused_before_a_command_is_begun(tags):
    with raising("unknown-tag", match="known are weight, kv_cache"):
        ControlRequest.of("sleep", both_methods, tags)


class Unit(Action):
    """Says when it ran."""

    purpose = "a test"

    def __init__(self, name, ran, calls) -> None:
        self.name, self.plan, self.around = name, "update", calls.around
        self._ran = ran

    def run(self, context) -> None:
        self._ran.append((self.name, context.sequence, context.verify_checksum))


def test_a_method_runs_in_its_own_command_alone_and_no_unit_runs_twice():
    """Another process may command the group while a request is open whose command is not written yet."""
    ran, calls = [], ControlCalls()
    load, verify, serve = (
        Unit(name, ran, calls) for name in (names.LOAD_WEIGHTS, names.VERIFY_LOADED, names.RESUME_ADMITTING)
    )
    plans = Plans({"update": Plan(UPDATE, (load, verify, serve))})

    def body() -> str:
        ran.append("body")
        calls.inside.load(verify_checksum=False)
        return "done"

    def carry_out(sequence) -> None:
        runner = SimpleNamespace(kv_cache=None, auxiliaries=(), groups=None, deepep=None)
        context = ActionContext(runner, 0, 1, epoch=1, sequence=sequence)
        for unit in plans.named(UPDATE).actions:
            unit.carry_out(context)

    asked = ControlRequest("wakeup", frozenset({Tag.WEIGHTS}))
    all_three = (names.LOAD_WEIGHTS, names.VERIFY_LOADED, names.RESUME_ADMITTING)
    with calls.open(asked, body, lambda sequence: sequence == 5, plans) as call:
        assert load.deadline_s == DEADLINES_S["wakeup"]
        carry_out(4)
        carry_out(5)
        with raising("call-open", match="sleep was called while wakeup"):
            calls.passes_through("sleep")
    assert load.deadline_s == 60.0
    assert (ran[:3], call.result) == ([(name, 4, None) for name in all_three], "done")
    its_own = [
        (names.LOAD_WEIGHTS, 5, False),
        (names.VERIFY_LOADED, 5, False),
        (names.RESUME_ADMITTING, 5, None),
    ]
    assert ran[3:] == ["body", *its_own]
    carry_out(6)
    assert ran[-3:] == [(name, 6, None) for name in all_three]
