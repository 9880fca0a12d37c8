"""What the campaign would say of a group that does wrong: its own eyes, on made-up evidence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rich.console import Console

from campaign import conductor, havoc
from campaign.case import Case
from campaign.catalogue import every_case, every_other_case
from campaign.families import sample
from campaign.fault import Act, Fault, Fired, OrderBook
from campaign.group import GroupUnderFault
from campaign.journals import impossible_entries
from campaign.leftovers import left_by, remove_leftovers
from campaign.load import Answered, shape_problem
from campaign.memory_rank import RECORD
from campaign.operations import HALVES, Begin
from campaign.played_config import MODEL
from campaign.points import OrderedFailureError, Trap
from campaign.result import Result, named_ranks
from campaign.segment_damage import PLACES
from campaign.step_audit import StepAudit, published_digest
from campaign.table import show, show_failure
from campaign.token_audit import TokenAudit
from campaign.versioned_cache import VersionedCache
from examples.rollout.model.shape import ModelShape
from examples.rollout.request import FinishReason, Generation
from tests.leftovers import group_name
from wsm.command import parse_tags
from wsm.controller.errors import CommandTimeoutError, RankLostError
from wsm.signals.layout import segment_path
from wsm.states.vocabulary import KVPolicy, Tag
from wsm.testing import InMemoryRequests

SHAPE = ModelShape(**MODEL)
VICTIMS = ["rank0", "rank1"]


def write_steps(directory, rank, *steps):
    """Each step: epoch, number, version that it names, version whose bytes were held; and whose blocks."""
    (directory / "steps").mkdir(exist_ok=True)
    with (directory / "steps" / f"rank{rank}.steps").open("ab") as file:
        for epoch, step, version, held, *blocks in steps:
            kept = blocks or (version, version)
            file.write(RECORD.pack(epoch, step, version, published_digest(SHAPE, held, rank, 2), *kept))


def test_pure_steps_are_found_pure_and_counted_once(tmp_path):
    audit = StepAudit(tmp_path, SHAPE, 2)
    for rank in (0, 1):
        write_steps(tmp_path, rank, (1, 1, 1, 1), (1, 2, 2, 2))
    assert audit.check() == (4, [])
    assert audit.last_version == 2
    assert audit.check() == (0, [])


def test_a_step_that_two_versions_made_is_named(tmp_path):
    write_steps(tmp_path, 0, (1, 7, 1, 1))
    write_steps(tmp_path, 1, (1, 7, 2, 2))
    assert StepAudit(tmp_path, SHAPE, 2).check() == (
        2,
        ["step 7 of epoch 1 was mixed: version 1 on rank 0, 2 on rank 1"],
    )


def test_a_step_with_other_bytes_than_its_versions_is_named(tmp_path):
    write_steps(tmp_path, 0, (1, 7, 1, 2))
    checked, problems = StepAudit(tmp_path, SHAPE, 2).check()
    assert (checked, problems) == (1, ["step 7 of epoch 1: rank 0 said version 1, held other bytes"])


@pytest.mark.parametrize(
    ("policy", "idle", "running", "problem"),
    [
        (KVPolicy.DROP, 1, 2, "offered prefixes of version 1 to version 2, which came with drop"),
        (KVPolicy.DROP, 2, 1, "went on from blocks of version 1 in version 2, which came with drop"),
        (KVPolicy.KEEP_IN_FLIGHT, 1, 1, "offered prefixes of version 1 to version 2"),
        (KVPolicy.KEEP_IN_FLIGHT, 2, 1, None),
        (KVPolicy.KEEP, 1, 1, None),
    ],
)
def test_blocks_of_older_weights_that_the_policy_does_not_allow_are_named(
    tmp_path, policy, idle, running, problem
):
    write_steps(tmp_path, 0, (1, 7, 2, 2, idle, running))
    _, problems = StepAudit(tmp_path, SHAPE, 2, {2: policy}).check()
    assert [problem in found for found in problems] == ([True] if problem else [])


def test_an_engine_in_memory_knows_whose_blocks_its_requests_and_its_prefixes_are():
    requests = InMemoryRequests()
    blocks = VersionedCache(requests)
    requests.submit(2)
    requests.advance()
    blocks.compute(1)
    assert blocks.foreign(1) == (1, 1)
    assert blocks.foreign(2) == (1, 1)
    blocks.forget_idle()
    assert blocks.foreign(2) == (2, 1)
    requests.abort_all()
    blocks.forget_idle()
    assert blocks.foreign(2) == (2, 2)


def test_the_last_record_of_a_killed_rank_may_be_torn(tmp_path):
    write_steps(tmp_path, 0, (1, 1, 1, 1))
    with (tmp_path / "steps" / "rank0.steps").open("ab") as file:
        file.write(b"torn")
    assert StepAudit(tmp_path, SHAPE, 2).check() == (1, [])


def answer(tokens, versions, reason=FinishReason.LENGTH):
    return Answered((1, 2), Generation("r", tuple(tokens), (0.0,) * len(tokens), tuple(versions), reason))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (answer([1], [1, 1], FinishReason.ABORTED), "1 tokens, 2 versions"),
        (answer([1] * 7, [1] * 7), "finished by length with 7 of 8 tokens"),
        (answer([1] * 8, [2] * 4 + [1] * 4), "versions go back"),
    ],
)
def test_answers_that_cannot_be_are_named(wrong, problem):
    assert problem in shape_problem(wrong)


@pytest.mark.paddle
def test_a_token_of_mixed_blocks_is_allowed_only_where_its_version_came_with_blocks():
    token = Generation("r", (1,), (0.0,), (2,), FinishReason.ABORTED, mixed=(0,))
    for policy, wrong in ((KVPolicy.DROP, 1), (KVPolicy.KEEP, 0)):
        _, problems = TokenAudit(SHAPE, {2: policy}).check([Answered((1, 2), token)])
        assert len(problems) == wrong


@pytest.mark.paddle
def test_a_token_that_its_version_does_not_say_is_named():
    audit = TokenAudit(SHAPE)
    first = audit._token(1, (1, 2))
    good = answer([first], [1], FinishReason.ABORTED)
    assert audit.check([good]) == (1, [])
    bad = answer([(first + 1) % MODEL["vocabulary"]], [1], FinishReason.ABORTED)
    checked, problems = audit.check([bad])
    assert checked == 1
    assert f"token 0 is {(first + 1) % 11}; version 1, which it names, says {first}" in problems[0]


def test_what_a_group_leaves_in_shared_memory_is_seen_and_removed(tmp_path):
    path = segment_path(group_name("campaign"))
    path.touch()
    try:
        name = path.name.removeprefix("wsm.")
        assert left_by(name, tmp_path, patience_s=0) == [f"shared memory: {path.name}"]
        remove_leftovers(name)
        assert left_by(name, tmp_path, patience_s=0) == []
    finally:
        path.unlink(missing_ok=True)


def test_a_process_that_outlives_its_group_is_seen(tmp_path):
    name = group_name("campaign")
    with subprocess.Popen([sys.executable, "-c", f"input() # {name}"], stdin=subprocess.PIPE) as process:
        [found] = left_by(name, tmp_path, patience_s=0)
        assert found.startswith(f"process {process.pid}: ")
        process.kill()


def test_errors_name_ranks_by_their_attributes():
    lost = RankLostError("they are gone", ranks=(1, 3))
    late = CommandTimeoutError("it was late", waiting={2: "is draining"})
    assert named_ranks(lost) == [1, 3]
    assert named_ranks(late) == [2]
    assert named_ranks(None) == []


def test_an_order_is_obeyed_once_at_its_turn_and_no_other_point(tmp_path):
    orders = OrderBook(tmp_path)
    trap = Trap(orders, "rank0")
    orders.give(Fault("rank0", "started:load_weights", Act.RAISE, nth=2))
    trap.passes("started:load_weights")
    trap.passes("finished:load_weights")
    assert orders.fired("rank0") is None
    with pytest.raises(OrderedFailureError):
        trap.passes("started:load_weights")
    assert isinstance(orders.fired("rank0"), Fired)
    trap.passes("started:load_weights")
    trap.passes("started:load_weights")


@pytest.mark.parametrize(("act", "error"), [(Act.RAISE, OrderedFailureError), (Act.EXHAUST, MemoryError)])
def test_an_order_for_a_line_is_obeyed_between_two_lines_of_wsm_after_the_next_journal_line(
    tmp_path, act, error
):
    orders = OrderBook(tmp_path)
    trap = Trap(orders, "rank0")
    orders.give(Fault("rank0", "line", act, nth=3))
    trap.passes("step")
    assert parse_tags("weights") == {Tag.WEIGHTS}
    trap.passes("started:load_weights")
    with pytest.raises(error):
        parse_tags("weights")
    assert isinstance(orders.fired("rank0"), Fired)
    assert parse_tags("weights") == {Tag.WEIGHTS}


def test_every_kind_of_havoc_can_be_chosen_and_every_place_of_a_segment_flipped():
    kinds = {case.what.partition(":")[0] for case in havoc.cases("cache", 2)}
    assert kinds == set(havoc.KINDS) >= {"line-kill", "while-restored", "flip-midway", "no-descriptors"}
    assert {place.format(rank=1) for place in PLACES} >= {"command", "status1", "heartbeat1", "report1"}


def test_a_case_says_by_its_name_how_to_play_it_again():
    fault = Fault("rank1", "transition:weights.CLEARED", Act.FREEZE, 3)
    case = Case("gloo", 4, "clear", str(fault))
    assert Case.parse(str(case)) == case
    assert case.fault == fault
    with pytest.raises(ValueError, match="names no case"):
        Case.parse("memory/2")


def test_every_new_line_of_a_journal_has_its_cases():
    group = GroupUnderFault.__new__(GroupUnderFault)
    group.kind, group.ranks = "memory", 2
    points = ["started:stage_weights", "begin:stage_weights", "write"]
    heard = {"hot": dict.fromkeys(VICTIMS, points)}
    names = {str(case) for case in every_case(group, heard, VICTIMS)}
    assert {
        "memory/2/hot/rank1/kill@started:stage_weights#1",
        "memory/2/hot/rank0/lie@begin:stage_weights#1",
        "memory/2/hot/rank0/raise@write#1",
    } <= names


def test_ranks_that_take_turns_have_every_point_of_a_journal_between_them():
    group = GroupUnderFault.__new__(GroupUnderFault)
    group.kind, group.ranks = "memory", 2
    points = [f"{kind}:{action}" for action in ("drain", "load", "flip") for kind in ("started", "finished")]
    heard = {"wake-kv": dict.fromkeys(VICTIMS, points)}
    killed = [case.fault for case in every_other_case(group, heard, VICTIMS) if case.fault.act is Act.KILL]
    assert sorted(fault.point for fault in killed) == sorted(points)
    assert {fault.victim for fault in killed} == set(VICTIMS)


def test_every_half_begins_where_another_can_end():
    ends = {ending for half in HALVES.values() for ending in half.endings}
    assert {"weights alone", "KV cache alone", "CLEARED", "new version", "old version"} <= ends
    assert {half.begin for half in HALVES.values()} == set(Begin) - {Begin.HELD}
    assert all(half.is_half for half in HALVES.values())


def test_a_sample_is_the_same_every_time_and_has_something_of_everything():
    cases = [
        Case("memory", 2, operation, f"rank{rank}/{act}@started:{number}#1")
        for operation in ("clear", "update")
        for rank in (0, 1)
        for act in ("kill", "stop")
        for number in range(10)
    ]
    chosen = sample(cases, 8)
    assert chosen == sample(list(reversed(cases)), 8)[::-1]
    assert {(case.operation, case.fault.act) for case in chosen} == {
        (operation, act) for operation in ("clear", "update") for act in (Act.KILL, Act.STOP)
    }


def test_the_table_fits_eighty_columns_and_a_failure_says_how_to_repeat_it(capsys):
    name = "memory/2/update/rank1/kill@started:load_weights#1"
    bad = Result(
        name, "old version", problems=["the error names no rank, not rank 1"], leftovers=["process 1"]
    )
    good = Result(name, "restarted", "RankLostError", [1], detected_ms=1234.5, checked=10)
    console = Console(width=80, highlight=False)
    show([good] * 120 + [bad], console)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "121 cases, 1 bad; 1 left something behind; 1200 steps" in " ".join(lines)
    show_failure(bad, console)
    assert f"again: python -m campaign --case '{name}'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_batch_that_hangs_is_ended_and_the_next_case_is_played(monkeypatch):
    monkeypatch.setattr(conductor, "CASE_LIMIT_S", 8.0)
    program = (
        "import sys, time\n"
        "from campaign.result import Result\n"
        "for line in sys.stdin:\n"
        "    print('begin', line.strip(), flush=True)\n"
        "    time.sleep(1000 * ('hangs' in line))\n"
        "    print(Result(line.strip(), 'fine').to_line(), flush=True)\n"
    )
    monkeypatch.setattr(conductor, "_batch", lambda kind, ranks: [sys.executable, "-c", program])
    cases = [Case("memory", 2, "clear", what) for what in ("first", "hangs", "last")]
    told: list[Result] = []
    results = conductor.play_all(cases, jobs=1, tell=told.append)
    assert [result.outcome for result in results] == ["fine", "hang", "fine"]
    assert results == told
    assert "nothing was heard" in results[1].problems[0]


def test_a_journal_that_no_rank_can_have_lived_is_named(tmp_path):
    line = (
        '{"schema":2,"kind":"transition","at_ns":1,"wall_ns":1,"rank":0,"epoch":1,"sequence":1,"facts":'
        '{"machine":"weights","source":"NORMAL","event":"commit","dest":"PREPARED","guard":null,"cause":""}}\n'
    )
    (tmp_path / "rank0.ndjson").write_text(line)
    (tmp_path / "rank1.ndjson").write_text("not a line\n")
    first, second = impossible_entries(tmp_path)
    assert first.startswith("journal rank0.ndjson: entry 0")
    assert second.startswith("journal rank1.ndjson: ")
