"""The order check catches what went wrong elsewhere, seeded here into good plans one fault at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drawing.engine import engine_with_everything
from wsm.actions import names
from wsm.actions._groups import ClearDeepEPBuffer, ShutDownGroup
from wsm.actions.addition import Addition
from wsm.actions.base import Action, Plans
from wsm.actions.order import BEFORE, MIRRORS, check_order
from wsm.actions.plan import PlanOptions, derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.errors import InternalError
from wsm.states.plan_key import COMMANDED
from wsm.states.vocabulary import Tag


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
    return Plans({**plans.by_name, plan.name: plan})


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
    faulty = put_into(plans, swapped(getattr(plans, plan), first, second))
    with pytest.raises(InternalError) as caught:
        check_order(faulty)
    assert caught.value.plan == plan


def test_every_single_rule_is_enforced_wherever_it_applies(plans):
    applied = set()
    for rule in BEFORE:
        for plan in plans:
            if rule.first in plan.names() and rule.second in plan.names():
                with pytest.raises(InternalError):
                    check_order(put_into(plans, swapped(plan, rule.first, rule.second)))
                applied.add(rule)
    assert applied == set(BEFORE), "a rule that no plan can break says nothing"


def test_an_action_that_any_plan_lacks_is_caught(plans):
    """Plans that repair are said less of: what they have to give back, and no more."""
    free = {
        *(action.name for action in plans.rejoin.actions),
        names.DROP_MAIN_GRAPHS,
        names.DROP_DRAFT_GRAPHS,
        names.FORGET_ROUTING_REPLAY,
        names.FORGET_KV_CACHE,
        names.FORGET_AUXILIARY_CACHE,
    }
    for plan in plans:
        commanded = plan.key in COMMANDED
        for name in plan.names() if commanded else sorted(set(plan.names()) - free):
            with pytest.raises(InternalError) as caught:
                check_order(put_into(plans, without(plan, name)))
            assert caught.value.code == "plan-order", (plan.name, name)


@pytest.mark.parametrize("mirror", MIRRORS, ids=lambda mirror: mirror.given)
@pytest.mark.parametrize("side", ["taken", "given"])
def test_a_mirror_that_no_plan_has_any_more_is_caught(plans, mirror, side):
    for plan in plans:
        plans = put_into(plans, without(plan, getattr(mirror, side)))
    if side == "taken" and mirror.given_alone:
        check_order(plans)
    else:
        with pytest.raises(InternalError):
            check_order(plans)


def test_an_action_that_a_plan_has_without_a_reason_is_caught(plans):
    """Every mirrored action, put into every plan that must not have it, at its end and at its beginning."""
    mirrored = {name for mirror in MIRRORS for name in (mirror.taken, mirror.given)}
    some = {action.name: action for plan in plans for action in plan.actions if action.name in mirrored}
    for key in COMMANDED:
        plan = plans.named(key)
        for action in some.values():
            if action.name not in plan.names():
                for actions in ((*plan.actions, action), (action, *plan.actions)):
                    with pytest.raises(InternalError):
                        check_order(put_into(plans, replace(plan, actions=actions)))


class FlushLora(Action):
    name = "flush_lora_cache"

    def run(self, context):
        """Nothing."""


class ReloadLora(FlushLora):
    name = "reload_lora_cache"


@pytest.mark.parametrize("tags", [{Tag.WEIGHTS}, {Tag.KV_CACHE}, {Tag.WEIGHTS, Tag.KV_CACHE}])
def test_an_action_of_an_engines_own_that_any_plan_lacks_is_caught(tags):
    lora = Addition(FlushLora, ReloadLora, tags=frozenset(tags))
    plans = derive_plans(PlanOptions(additions=(lora,)))
    found = 0
    for plan in plans:
        for name in {"flush_lora_cache", "reload_lora_cache"} & set(plan.names()):
            found += 1
            with pytest.raises(InternalError, match=name):
                check_order(put_into(plans, without(plan, name)), (lora,))
    assert found >= 8


def test_every_action_of_wsm_is_in_a_plan_of_an_engine_that_has_everything(plans):
    everywhere = {action.name for plan in plans for action in plan}
    rejoining = derive_plans(
        PlanOptions(has_deepep=True, group_kinds=(GroupKind.WORLD, GroupKind.EP), rejoins=True)
    )
    assert everywhere | {action.name for action in rejoining.rejoin} == names.ALL


def test_a_group_that_is_shut_down_twice_is_caught(plans):
    actions = list(plans.clear.actions)
    actions.insert(plans.clear.names().index(names.VERIFY_CLEARED), ShutDownGroup(GroupKind.EP))
    with pytest.raises(InternalError, match="double shutdown"):
        check_order(put_into(plans, replace(plans.clear, actions=tuple(actions))))


def test_a_collective_step_in_the_discard_plan_is_caught(plans):
    settle, *rest = plans.discard.actions
    faulty = replace(plans.discard, actions=(settle, ClearDeepEPBuffer(), *rest))
    with pytest.raises(InternalError):
        check_order(put_into(plans, faulty))


def test_a_collective_step_after_the_decision_is_caught(plans):
    faulty = replace(plans.update, commit=(ShutDownGroup(GroupKind.TP),))
    with pytest.raises(InternalError, match="local outside the voted part"):
        check_order(put_into(plans, faulty))
