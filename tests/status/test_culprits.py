"""Whom a command waits for, and who is to blame where a rank failed and another one was lost over it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hangs import Hang, random_hang
from situations import SITUATIONS

from wsm.command import FailureReport
from wsm.journal.entry import CONTROLLER
from wsm.metrics.families import families
from wsm.metrics.history import JournalCounts
from wsm.states.words import StepKind, StepWord
from wsm.status.culprits import Culprit, Situation, blame, doings, late_ranks, overdue
from wsm.status.facts import DEAD, STOPPED, ActionFacts
from wsm.status.rules import find

FAILURE = FailureReport(rank=0, action="restart_tp_group", error="OSError", message="no route", traceback="…")
BROKEN_STEP = FailureReport(
    rank=0, action="step", error="RuntimeError", message="connection reset", traceback="…"
)
LATE = {1: "has not answered"}


def test_a_rank_that_fails_is_named_before_one_whose_step_broke_over_it():
    found = blame(Situation(lost=(1,), broken=(1,)), {0: (FAILURE, False)})
    assert found.failure is FAILURE
    assert found.others == {1: "its process is gone"}


def test_a_rank_that_died_is_named_before_one_that_failed_over_it():
    assert blame(Situation(lost=(1,)), {0: (FAILURE, False)}).lost == (1,)


def test_a_rank_whose_step_broke_is_named_where_none_has_failed():
    assert blame(Situation(lost=(1,), broken=(1,)), {}).lost == (1,)


def test_a_rank_that_was_late_is_named_before_one_whose_step_broke_after_the_deadline():
    """The end of the late one's process breaks the step in which another waits for it."""
    found = blame(Situation(late=LATE, expired=True), {0: (BROKEN_STEP, False)})
    assert found.failure is None


@pytest.mark.parametrize("then", [Situation(late=LATE, expired=True, failed=(0,)), Situation()])
def test_a_rank_whose_step_broke_before_the_deadline_is_named(then):
    assert blame(then, {0: (BROKEN_STEP, False)}).failure is BROKEN_STEP


def test_an_echo_is_the_cause_of_nothing_and_a_wait_only_where_no_rank_failed_of_itself():
    echo = FailureReport(0, "votes", "peer-never-ready", "rank 1 will not come")
    wait = FailureReport(1, "park", "wait-expired", "rank 0 never came")
    assert blame(Situation(), {0: (echo, False)}).failure is None
    assert blame(Situation(), {0: (echo, False), 1: (wait, False)}).failure is wait
    assert blame(Situation(), {0: (FAILURE, False), 1: (wait, False)}).failure is FAILURE


def test_what_was_reported_only_after_the_decision_is_not_blamed_for_it():
    first = FailureReport(1, "load_weights", "OSError", "too many open files")
    found = blame(Situation(failed=(1,)), {0: (FAILURE, False), 1: (first, False)})
    assert found.failure is first
    assert found.others == {0: "no route"}


def test_of_several_hangs_the_stopped_one_is_named_and_the_others_beside_it():
    hangs = (
        Culprit(1, "load_weights", 80.0, 60.0, stopped=True),
        Culprit(0, "load_weights", 90.0, 60.0, stopped=False),
    )
    found = blame(Situation(hangs=hangs), {})
    assert found.hang is hangs[0]
    assert found.others == {0: "is in load_weights, too"}


def test_the_rank_that_never_came_is_named_alone_by_status_error_and_advice():
    """It holds the collective action up that another one is inside of, past its deadline."""
    situation = SITUATIONS["a rank that never entered a collective action"]
    found, (culprit,) = find(situation), overdue(situation)
    assert (culprit.rank, culprit.action, culprit.entered) == (1, "restart_tp_group", False)
    assert (found.code, found.ranks) == ("action-overdue", (1,))
    assert "rank 1, which has not entered restart_tp_group" in found.state
    assert "kill -9 101" in found.advice[0].text
    assert culprit.sentence() == (
        "did not enter restart_tp_group, in which others have been for 90.0 s; its deadline is 60 s"
    )


def test_a_rank_inside_a_step_that_another_has_not_entered_is_not_blamed():
    late = late_ranks(SITUATIONS["two that have not answered, one of them not in the step of the other"])
    assert late == {1: "has not answered"}


def test_a_stopped_rank_is_named_alone():
    late = late_ranks(SITUATIONS["two that have not answered, one stopped"])
    assert late == {1: "has not answered; its process is stopped"}


def test_a_stopped_rank_is_not_blamed_for_an_action_that_it_does_not_keep_from_its_end():
    situation = SITUATIONS["a rank that hangs in an action"]
    beside = replace(situation.ranks[0], life=STOPPED)
    both = replace(situation, ranks=(beside, situation.ranks[1]))
    found, (culprit,) = find(both), overdue(both)
    assert (culprit.rank, found.code, found.ranks) == (1, "action-overdue", (1,))
    assert [each for one in found.advice for each in one.commands] == [
        *("kill -9 101", "kill -CONT 100", "kill -9 100"),
    ]


def test_a_rank_that_keeps_another_in_a_step_is_named_for_the_action_that_cannot_end_there():
    """What is staged beside the loop is over, but the loop stands in a step and cannot say so."""
    (staging, serving) = SITUATIONS["staging"].ranks
    late = replace(
        serving,
        action=ActionFacts("stage_weights", 60.0, 90.0),
        step_word=StepWord(2, 6, StepKind.RUNNING, 41),
    )
    (culprit,) = overdue(replace(SITUATIONS["staging"], ranks=(staging, late)))
    assert (culprit.rank, culprit.entered, culprit.step) == (0, False, 41)
    assert culprit.sentence() == (
        "did not enter step 41, in which others have been in stage_weights for 90.0 s; its deadline is 60 s"
    )


# -- random hangs whose culprit is known -------------------------------------------------------------


def named_by_status(hang: Hang) -> tuple[int, ...]:
    """Whom ``wsm explain`` and ``wsm status`` name."""
    found = find(hang.facts)
    return (CONTROLLER,) if found.code.startswith("controller-") else found.ranks


def named_by_the_error(hang: Hang) -> tuple[int, ...]:
    """Whom a controller names that gives the command up now."""
    facts = hang.facts
    lost = tuple(rank.number for rank in facts.ranks if rank.life == DEAD)
    late = late_ranks(facts)
    then = Situation(late=late, doing=doings(facts), lost=lost, hangs=overdue(facts), expired=True)
    found = blame(then, {})
    return found.lost or ((found.hang.rank,) if found.hang is not None else tuple(late))


def named_by_metrics(hang: Hang) -> tuple[int, ...]:
    """Whom a scrape names."""
    told = families([(hang.facts, JournalCounts())], now_ns=0, started_s=0.0)
    (finding,) = (one for one in told if one.name == "wsm_finding")
    if finding.samples[0].labels["finding"].startswith("controller-"):
        return (CONTROLLER,)
    (of_ranks,) = (one for one in told if one.name == "wsm_finding_rank")
    return tuple(int(sample.labels["rank"]) for sample in of_ranks.samples)


@pytest.fixture(scope="module")
def hangs() -> list[Hang]:
    return [random_hang(seed) for seed in range(1000)]


@pytest.mark.slow
def test_the_culprit_of_a_hang_is_named_by_status_error_and_metrics(hangs):
    for hang in hangs:
        assert named_by_status(hang) == (hang.culprit,), f"{hang}"
        assert named_by_metrics(hang) == (hang.culprit,), f"{hang}"
        if hang.culprit != CONTROLLER:  # a controller that hangs raises nothing
            assert named_by_the_error(hang) == (hang.culprit,), f"{hang}"


@pytest.mark.slow
def test_the_action_whose_deadline_is_over_is_named_with_the_rank_that_keeps_it_from_its_end(hangs):
    late = [hang for hang in hangs if hang.overdue and hang.how == "hangs"]
    assert len(late) > 50
    for hang in late:
        (culprit, *_) = overdue(hang.facts)
        assert (culprit.rank, culprit.action) == (hang.culprit, hang.action), f"{hang}"
        assert culprit.entered == (hang.facts.ranks[hang.culprit].is_inside and culprit.step is None), (
            f"{hang}"
        )
        assert find(hang.facts).action == hang.action, f"{hang}"


def test_the_hangs_are_of_every_kind(hangs):
    """Of each operation and each decision, inside and outside of actions, ranks, helpers and controllers."""
    operations = {hang.facts.command.operation.name for hang in hangs}
    assert operations == {
        *("UPDATE", "CLEAR", "HOT_UPDATE", "HOLD", "COMMIT", "ABORT", "HOT_COMMIT", "HOT_ABORT"),
    }
    assert {hang.how for hang in hangs} == {"hangs", "stopped", "dead"}
    culprits = [hang.facts.ranks[hang.culprit] for hang in hangs if hang.culprit != CONTROLLER]
    assert len(hangs) - len(culprits) > 20
    assert sum(one.helper for one in culprits) > 30
    assert sum(one.is_inside for one in culprits) > 100
    voted = [one for one in culprits if one.status.ready > one.status.action and not one.is_inside]
    assert len(voted) > 10
