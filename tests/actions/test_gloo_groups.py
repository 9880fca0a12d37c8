"""Real Gloo groups between real processes, created and destroyed for real."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.forkserver import WITH_PADDLE
from wsm.actions.backends.paddle_groups import PaddleGlooGroups
from wsm.actions.backends.rendezvous import FileRendezvous
from wsm.actions.surfaces import GroupKind
from wsm.errors import BadInputError

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

MEMBER = Path(__file__).with_name("gloo_member.py")


@pytest.fixture
def run_members(tmp_path):
    """``run_members(scenario, size, ranks=None)``: what each started rank found, by rank."""
    started = []

    def run(scenario, size, ranks=None):
        for rank in range(size) if ranks is None else ranks:
            arguments = (scenario, str(rank), str(size), str(tmp_path))
            started.append(WITH_PADDLE.start(MEMBER, *arguments, stderr=subprocess.PIPE))
        answers = []
        for process in started:
            output, errors = process.stdout.read(), process.stderr.read()
            assert process.wait(90) == 0, errors.decode()
            answers.append(json.loads(output))
        return answers

    yield run
    for process in started:
        process.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_groups_are_created_and_destroyed_again_and_again(run_members, size, tmp_path):
    everyone = size * (size + 1) / 2
    for rank, answer in enumerate(run_members("rounds", size)):
        pair = 1.0 if size == 1 else 3.0 if rank < 2 else 7.0
        assert answer["totals"] == [[everyone, pair, everyone]] * 5
        assert answer["descriptors_per_round"] <= 3 * 4, "more than paddle's own leak per creation"
    assert [entry.name for entry in tmp_path.iterdir()] == ["group_ids"]


@pytest.mark.slow
def test_one_kind_goes_down_and_comes_back_while_the_others_live(run_members):
    for answer in run_members("subset", 2):
        assert answer["found"] == [[True, False, True], [3.0, 3.0], [3.0, 3.0, 3.0]] * 3


@pytest.mark.slow
def test_a_group_that_somebody_keeps_is_named_and_can_be_let_go(run_members):
    for answer in run_members("held", 2):
        assert answer["errors"] == [["a list"], "tp"]
        assert answer["alive"] is False
        assert answer["total"] == 3.0


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("rank", "error", "says"),
    [(0, "GroupError", "not all members came"), (1, "GroupError", "rank 0")],
)
def test_a_member_that_never_comes_is_an_error_and_no_hang(run_members, rank, error, says, tmp_path):
    (answer,) = run_members("alone", 2, ranks=[rank])
    assert answer["error"] == error
    assert says in answer["message"]
    assert answer["alive"] is False
    assert not list(tmp_path.glob("*.endpoint"))


def test_a_member_is_called_out_of_a_collective_and_the_group_is_made_anew(run_members):
    """Gloo alone would let it wait for 30 s, and a member that is not next to it in the ring, too."""
    for answer in run_members("interrupted", 2):
        assert answer["first"] == 3.0
        assert answer["error"] == "RuntimeError"
        assert answer["interrupted"] is True
        assert answer["alive"] == [False, False]
        assert answer["again"] == [3.0, 3.0]


@pytest.mark.slow_but
@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_is_called_out_of_a_creation(run_members, rank):
    (answer,) = run_members("creation", 2, ranks=[rank])
    assert answer["error"] in ("GroupError", "GroupError")
    assert answer["alive"] is False


@pytest.mark.parametrize("members", [[1, 2], [0, 0], []])
def test_a_rank_is_a_member_of_its_own_groups_once(members, tmp_path):
    with pytest.raises(BadInputError):
        PaddleGlooGroups(0, {GroupKind.TP: members}, FileRendezvous(tmp_path))
