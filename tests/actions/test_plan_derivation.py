"""Which steps a configuration gets: all that it needs, none that it does not, in a checked order."""

from __future__ import annotations

import pytest

from drawing.engine import engine_with_everything
from tests.actions.plan_rules import ALL_GROUPS, every_configuration
from tests.incident import incident
from wsm.actions import names
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import GroupKind
from wsm.errors import BadInputError
from wsm.states.vocabulary import KVPolicy


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
        capture = next(action for action in plans.update if action.name == names.CAPTURE_MAIN_GRAPHS)
        assert capture.collective is collective


def test_deadlines_come_from_the_configuration_by_name():
    plans = derive_plans(PlanOptions(deadlines={names.LOAD_WEIGHTS: 7.5}))
    for plan in (plans.update, plans.update_in_place):
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
    assert derive_plans(options).update_in_place.kv_policies == frozenset(KVPolicy)


def test_options_are_read_from_a_runner(runner):
    runner.auxiliaries = []
    runner.routing_replay = None
    options = PlanOptions.from_runner(runner, shut_down_groups=True)
    assert options.has_graphs
    assert not options.has_draft_graphs
    assert not options.routing_replay
    assert options.group_kinds == ALL_GROUPS
