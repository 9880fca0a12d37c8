"""Plans keep what incidents have taught, have what a configuration needs, and seeded faults are caught."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drawing.engine import engine_with_everything
from tests.actions.plan_rules import ALL_GROUPS, BEFORE, MIRRORS, broken, every_configuration
from tests.incident import incident
from wsm.actions import names
from wsm.actions.options import PlanOptions
from wsm.actions.plan import STEPS, derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.errors import BadInputError
from wsm.states.plan_key import COMMANDED, PLANS, REJOIN, UPDATE, UPDATE_IN_PLACE, Repair
from wsm.states.vocabulary import KVPolicy

EVERYTHING = engine_with_everything()


@pytest.fixture
def plans():
    return derive_plans(EVERYTHING)


def test_every_plan_of_every_configuration_keeps_every_rule_of_order(plans):
    for several in (plans, *map(derive_plans, every_configuration())):
        assert [rule for plan in several for rule in broken(plan)] == []
    applied = {rule for rule in BEFORE for plan in plans if {rule.first, rule.second} <= set(plan.names())}
    assert applied == set(BEFORE), "a rule that no plan can break says nothing"


@pytest.mark.slow
@incident("FastDeploy#8085", "4.8-9")
def test_what_is_taken_down_and_brought_up_is_in_exactly_the_plans_that_move_what_it_goes_with(plans):
    for several in (plans, *map(derive_plans, every_configuration())):
        everywhere = {name for plan in several for name in plan.names()}
        for mirror in MIRRORS:
            assert mirror.taken not in everywhere or mirror.given in everywhere
            assert mirror.given_alone or mirror.given not in everywhere or mirror.taken in everywhere
            for name, has in ((mirror.taken, mirror.takes), (mirror.given, mirror.gives)):
                for key in COMMANDED if name in everywhere else ():
                    assert (name in several.named(key).names()) is has(key), (name, str(key))


@incident("FastDeploy#4066")
def test_what_runs_without_a_vote_is_never_collective():
    for options in (EVERYTHING, replace(EVERYTHING, rejoins=True), *every_configuration()):
        plans = derive_plans(options)
        for plan in plans:
            unvoted = plan.actions if plan.staged or isinstance(plan.key.operation, Repair) else ()
            local = (*plan.admission, *plan.before_parking, *unvoted, *plan.commit)
            assert not [action.name for action in local if action.collective], plan.name


@incident("FastDeploy C2-5")
def test_no_plan_has_an_action_twice():
    for plan in (plan for options in every_configuration() for plan in derive_plans(options)):
        assert len(set(plan.names())) == len(plan.names()), plan.name


def test_a_plan_has_the_rows_that_its_engine_needs_in_the_order_of_the_table(plans):
    for plan in plans:
        rows = [step.name for step in STEPS if plan.key in step.where and step.engine(EVERYTHING)]
        assert [action.name for action in plan] == rows


def test_every_row_of_the_table_is_in_a_plan():
    rows = {step.name for step in STEPS if step.where <= set(PLANS) and step.where}
    assert rows == {step.name for step in STEPS} == names.ALL
    assert {action.name for plan in derive_plans(EVERYTHING) for action in plan} <= rows


def test_every_action_of_wsm_is_in_a_plan_of_an_engine_that_has_everything(plans):
    everywhere = {action.name for plan in plans for action in plan}
    rejoining = derive_plans(
        PlanOptions(has_deepep=True, group_kinds=(GroupKind.WORLD, GroupKind.EP), rejoins=True)
    )
    assert everywhere | {action.name for action in rejoining.named(REJOIN)} == names.ALL


# -- which steps a configuration gets --------------------------------------------------------------------


@incident("FastDeploy#5663")
def test_what_a_configuration_does_not_have_is_in_no_plan():
    whole = {action.name for plan in derive_plans(engine_with_everything()) for action in plan}
    found = {action.name for plan in derive_plans(PlanOptions(has_kv=False)) for action in plan}
    without = ("graphs", "kv_cache", "caches", "auxiliary", "deepep", "group", "routing")
    assert found == {name for name in whole if not any(part in name for part in without)} - {
        names.PROCESS_LOADED
    }


def test_every_action_is_named_in_the_one_list_and_says_what_it_is_for():
    known = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    for options in every_configuration():
        for plan in derive_plans(options):
            for action in plan:
                assert action.name in known
                assert action.purpose
                assert action.deadline_s > 0


def test_no_two_plans_share_an_action_object():
    plans = derive_plans(PlanOptions())
    objects = [id(action) for plan in plans for action in plan]
    assert len(objects) == len(set(objects))


def test_capturing_is_voted_on_only_where_it_is_collective():
    for collective in (False, True):
        plans = derive_plans(PlanOptions(has_graphs=True, capture_is_collective=collective))
        capture = next(action for action in plans.named(UPDATE) if action.name == names.CAPTURE_MAIN_GRAPHS)
        assert capture.collective is collective


def test_deadlines_come_from_the_configuration_by_name():
    plans = derive_plans(PlanOptions(deadlines={names.LOAD_WEIGHTS: 7.5}))
    for plan in (plans.named(UPDATE), plans.named(UPDATE_IN_PLACE)):
        load = next(action for action in plan if action.name == names.LOAD_WEIGHTS)
        assert load.deadline_s == 7.5


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"has_deepep": True}, "has_deepep"),
        ({"has_draft_graphs": True}, "has_draft_graphs"),
        ({"shut_down_groups": True}, "shut_down_groups"),
        ({"group_kinds": (GroupKind.TP, GroupKind.TP)}, "group_kinds"),
        ({"has_kv": False, "kv_policies": frozenset(KVPolicy)}, "kv_policies"),
        ({"deadlines": {"load_wieghts": 3.0}}, "deadlines"),
        ({"deadlines": {names.LOAD_WEIGHTS: 0.0}}, "deadlines"),
        ({"deadlines": {names.LOAD_WEIGHTS: float("nan")}}, "deadlines"),
    ],
)
def test_options_that_contradict_each_other_are_refused(fields, option):
    with pytest.raises(BadInputError) as caught:
        PlanOptions(**fields)
    assert option in (caught.value.context.get("option"), caught.value.context.get("keyword"))


def test_blocks_of_running_requests_are_only_kept_by_engines_that_can_tell_them_apart(runner):
    with pytest.raises(BadInputError, match="forget_idle"):
        PlanOptions.from_runner(runner, kv_policies=frozenset(KVPolicy))
    runner.keep_blocks_of_requests()
    options = PlanOptions.from_runner(runner, kv_policies=frozenset(KVPolicy))
    assert derive_plans(options).named(UPDATE_IN_PLACE).kv_policies == frozenset(KVPolicy)


def test_options_are_read_from_a_runner(runner):
    runner.auxiliaries = []
    runner.routing_replay = None
    options = PlanOptions.from_runner(runner, shut_down_groups=True)
    assert options.has_graphs
    assert not options.has_draft_graphs
    assert not options.routing_replay
    assert options.group_kinds == ALL_GROUPS
