"""Actions of an engine's own: in every plan that moves what they go with, run, undone, reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lone_rank import SPECS, LoneRank

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.actions.options import Addition, PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner
from wsm.config import Deadlines
from wsm.controller.errors import RankFailedError
from wsm.errors import BadInputError
from wsm.states.plan_key import CLEAR, COMMANDED, DISCARDS, HOT, UPDATE, Half
from wsm.states.vocabulary import Tag
from wsm.testing import InMemoryRunner, LocalGroup


class FlushLora(Action):
    name = "flush_lora_cache"
    purpose = "adapters that were merged into the old weights go"

    def run(self, context: ActionContext) -> None:
        context.runner.adapters.clear()
        context.facts["adapters_flushed"] = True


class ReloadLora(Action):
    name = "reload_lora_cache"
    purpose = "adapters stand on the new weights"

    def run(self, context: ActionContext) -> None:
        context.runner.reload(context.version)

    def probe(self, context: ActionContext) -> None:
        if context.runner.adapters != {"math": context.version}:
            raise PostconditionError(
                action=self.name, expected="an adapter on the new weights", found=str(context.runner.adapters)
            )

    def undo(self, context: ActionContext) -> None:
        context.runner.adapters.clear()


LORA = Addition(takes=FlushLora, brings=ReloadLora)


class LoraRunner(InMemoryRunner):
    def __init__(self) -> None:
        super().__init__(SPECS)
        self.additions = [LORA]
        self.adapters: dict[str, str | None] = {}
        self.fails = False

    def reload(self, version: int | None) -> None:
        if not self.fails:
            self.adapters["math"] = version


@pytest.fixture
def lone(tmp_path: Path):
    rank = LoneRank(tmp_path, runner=LoraRunner(), journal_directory=tmp_path / "journals")
    yield rank
    rank.close()


def test_an_addition_is_in_every_plan_that_moves_what_it_goes_with_and_in_no_other() -> None:
    plans = derive_plans(PlanOptions(additions=(LORA,)))
    for key in (*COMMANDED, *DISCARDS):
        here = plans.named(key).names()
        taken = key.weights in (Half.GOES, Half.WITHDRAWN, Half.REPLACED)
        assert ("flush_lora_cache" in here) is taken, key
        assert ("reload_lora_cache" in here) is (key.weights in (Half.COMES, Half.REPLACED)), key
    hot = [action.name for action in plans.named(HOT).flip]
    assert hot.index("flush_lora_cache") < hot.index(names.FLIP_WEIGHTS) < hot.index("reload_lora_cache")


def test_an_addition_stands_where_its_engine_says() -> None:
    placed = Addition(
        FlushLora,
        ReloadLora,
        tags=frozenset({Tag.KV_CACHE}),
        takes_before=(names.EMPTY_ALLOCATOR_CACHE,),
        brings_after=(names.REBUILD_KV_CACHE,),
    )
    clear = derive_plans(PlanOptions(additions=(placed,))).named(CLEAR).names()
    assert clear.index(names.RELEASE_KV_CACHE) < clear.index("flush_lora_cache")
    assert clear[clear.index("flush_lora_cache") + 1] == names.EMPTY_ALLOCATOR_CACHE


class Together(FlushLora):
    collective = True


class Taken(FlushLora):
    name = names.RELEASE_WEIGHTS


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Addition(None, None), "takes something down or brings it"),
        (lambda: Addition(FlushLora, None, tags=frozenset()), "with the weights, the KV cache, or both"),
        (lambda: Addition(FlushLora, None, takes_before=("unknown",)), "one of wsm.actions.names"),
        (lambda: PlanOptions(additions=(Addition(Taken, None),)), "'release_weights' is taken"),
        (
            lambda: derive_plans(
                PlanOptions(additions=(Addition(FlushLora, None, takes_before=(names.VERIFY_LOADED,)),))
            ),
            "the plan clear needs the addition",
        ),
        (
            lambda: PlanOptions(additions=(Addition(Together, None),)),
            "'flush_lora_cache' cannot be collective",
        ),
        (
            lambda: PlanOptions(additions=(Addition(None, Together),)),
            "'flush_lora_cache' cannot be collective",
        ),
        (lambda: PlanOptions(additions=(Addition(None, len),)), "it raised TypeError"),
        (lambda: PlanOptions(additions=(Addition(None, dict),)), "it returns an Action"),
    ],
)
def test_an_addition_that_cannot_be_is_refused_before_any_plan_runs(make: Any, error: str) -> None:
    with pytest.raises(BadInputError, match=error):
        make()


@pytest.mark.parametrize("hot", [False, True], ids=["in place", "hot"])
def test_the_actions_of_an_engine_run_with_every_change_of_its_weights(lone: LoneRank, hot: bool) -> None:
    lone.update(1)
    assert lone.runner.adapters == {"math": "1"}
    receipt = lone.update(2, hot=hot)
    assert lone.runner.adapters == {"math": "2"}
    done = [action.name for action in receipt.ranks[0].actions]
    assert done.index("flush_lora_cache") < done.index("reload_lora_cache")
    assert receipt.ranks[0].facts["adapters_flushed"]
    lone.clear()
    assert lone.runner.adapters == {}


def test_an_addition_that_fails_fails_its_command_and_the_discard_takes_it_down(lone: LoneRank) -> None:
    lone.update(1)
    lone.runner.fails = True
    with pytest.raises(RankFailedError, match="reload_lora_cache"):
        lone.update(2)
    assert lone.runner.adapters == {}
    assert lone.controller.status().ranks[0].weights == "CLEARED"
    lone.runner.fails = False
    lone.update(2)
    assert lone.runner.adapters == {"math": "2"}


def test_a_configured_deadline_reaches_an_addition_by_its_name(tmp_path: Path) -> None:
    options = PlanOptions.from_runner(LoraRunner(), deadlines={"reload_lora_cache": 7.0})
    update = derive_plans(options).named(UPDATE)
    assert [action.deadline_s for action in update.actions if action.name == "reload_lora_cache"] == [7.0]
    rank = LoneRank(tmp_path, runner=LoraRunner(), deadlines=Deadlines(action_s={"reload_lora_cache": 7.0}))
    rank.close()


@pytest.mark.parametrize("hot", [False, True])
def test_a_hook_stands_around_every_action_of_a_command_and_what_it_raises_fails_it(
    tmp_path: Path, hot: bool
) -> None:
    seen: list[tuple[str, str]] = []
    fails: list[str] = []

    def around(action: Action, context: ActionContext, run: Callable[[], None]) -> None:
        seen.append((action.plan, action.name))
        if action.name in fails:
            raise OSError(f"the hook around {action.name} fails")
        run()
        assert context.sequence

    def options(runner: BareRunner) -> PlanOptions:
        return PlanOptions.from_runner(runner, around=around)

    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, ranks=1, plan_options=options) as group:
        group.update(1)
        seen.clear()
        receipt = group.update(2, hot=hot)
        assert {name for _, name in seen} >= {action.name for action in receipt.ranks[0].actions}
        assert {plan for plan, _ in seen} == {"hot" if hot else "update_in_place"}
        fails.append(names.STAGE_WEIGHTS if hot else names.LOAD_WEIGHTS)
        with pytest.raises(RankFailedError, match="the hook around"):
            group.update(3, hot=hot)
        assert group.workers[0].version == "2"
