"""The order check catches what went wrong elsewhere, seeded here into good plans one fault at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drawing.engine import engine_with_everything
from wsm.actions import names
from wsm.actions._groups import ClearDeepEPBuffer, ShutDownGroup
from wsm.actions.errors import PlanOrderError
from wsm.actions.order import BEFORE, check_order
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.states.vocabulary import PlanName


@pytest.fixture
def plans():
    return derive_plans(engine_with_everything())


def swapped(plan, first, second):
    """Return `plan` with two of its actions in each other's place."""
    actions = list(plan.actions)
    one, other = plan.names().index(first), plan.names().index(second)
    actions[one], actions[other] = actions[other], actions[one]
    return replace(plan, actions=tuple(actions))


def put_into(plans, plan):
    """Return `plans` with one of them replaced."""
    if PlanName(plan.name) in plans.partial:
        return replace(plans, partial={**plans.partial, PlanName(plan.name): plan})
    return replace(plans, **{plan.name: plan})


def without(plan, name):
    return replace(plan, actions=tuple(action for action in plan.actions if action.name != name))


@pytest.mark.parametrize(
    ("plan", "first", "second"),
    [
        pytest.param("clear", names.DROP_DRAFT_GRAPHS, names.RELEASE_WEIGHTS, id="FastDeploy#7522"),
        pytest.param("clear", names.CLEAR_DEEPEP_BUFFER, names.SHUT_DOWN_EP_GROUP, id="DeepEP#571"),
        pytest.param("clear", names.DROP_MAIN_GRAPHS, names.DROP_DRAFT_GRAPHS, id="draft-first"),
        pytest.param("clear", names.SHUT_DOWN_TP_GROUP, names.SHUT_DOWN_WORLD_GROUP, id="world-first"),
        pytest.param("clear", names.RELEASE_KV_CACHE, names.VERIFY_CLEARED, id="CLEARED-before-free"),
        pytest.param("clear", names.SETTLE_REQUESTS, names.RELEASE_WEIGHTS, id="running-requests"),
        pytest.param("update", names.RESTART_WORLD_GROUP, names.RESTART_EP_GROUP, id="ep-up-first"),
        pytest.param("update", names.RESTART_EP_GROUP, names.RECREATE_DEEPEP_BUFFER, id="buffer-first"),
        pytest.param("update", names.CAPTURE_MAIN_GRAPHS, names.REBUILD_KV_CACHE, id="capture-first"),
        pytest.param("update", names.CAPTURE_MAIN_GRAPHS, names.DECLARE_PREPARED, id="FastDeploy#3773"),
        pytest.param("update", names.LOAD_WEIGHTS, names.VERIFY_LOADED, id="verify-first"),
        pytest.param("update_in_place", names.DROP_MAIN_GRAPHS, names.LOAD_WEIGHTS, id="FastDeploy#8085"),
    ],
)
def test_two_steps_in_the_wrong_order_are_caught(plans, plan, first, second):
    faulty = replace(plans, **{plan: swapped(getattr(plans, plan), first, second)})
    with pytest.raises(PlanOrderError) as caught:
        check_order(faulty)
    assert caught.value.plan == plan


def test_every_single_rule_is_enforced_wherever_it_applies(plans):
    applied = set()
    for rule in BEFORE:
        for plan in plans:
            if rule.first in plan.names() and rule.second in plan.names():
                with pytest.raises(PlanOrderError):
                    check_order(put_into(plans, swapped(plan, rule.first, rule.second)))
                applied.add(rule)
    assert applied == set(BEFORE), "a rule that no plan can break says nothing"


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        ("update", names.RESTART_TP_GROUP),
        ("update", names.RECREATE_DEEPEP_BUFFER),
        ("update", names.CAPTURE_DRAFT_GRAPHS),
        ("update", names.REBUILD_KV_CACHE),
        ("update", names.VERIFY_LOADED),
        ("update_in_place", names.VERIFY_LOADED),
        ("update_in_place", names.DECLARE_PREPARED),
        ("clear", names.SHUT_DOWN_TP_GROUP),
        ("clear", names.VERIFY_CLEARED),
        ("clear", names.DECLARE_CLEARED),
        ("clear", names.SETTLE_REQUESTS),
        ("discard", names.VERIFY_CLEARED),
    ],
)
def test_a_missing_step_is_caught(plans, plan, name):
    with pytest.raises(PlanOrderError):
        check_order(replace(plans, **{plan: without(getattr(plans, plan), name)}))


def test_a_group_that_is_shut_down_twice_is_caught(plans):
    actions = list(plans.clear.actions)
    actions.insert(plans.clear.names().index(names.VERIFY_CLEARED), ShutDownGroup(GroupKind.EP))
    with pytest.raises(PlanOrderError, match="double shutdown"):
        check_order(replace(plans, clear=replace(plans.clear, actions=tuple(actions))))


def test_a_collective_step_in_the_discard_plan_is_caught(plans):
    settle, *rest = plans.discard.actions
    faulty = replace(plans.discard, actions=(settle, ClearDeepEPBuffer(), *rest))
    with pytest.raises(PlanOrderError):
        check_order(replace(plans, discard=faulty))


def test_a_collective_step_after_the_decision_is_caught(plans):
    faulty = replace(plans.update, commit=(ShutDownGroup(GroupKind.TP),))
    with pytest.raises(PlanOrderError, match="local outside the voted part"):
        check_order(replace(plans, update=faulty))
