"""Each action of each plan that a command runs fails in each way; what comes of it is named, and is repaired.

A real worker, segment and controller around an engine that has every surface; the action itself is made to
raise, for want of memory too, to leave its work undone, or to outlast its deadline. Hangs and deaths of whole
processes are in ``tests/controller`` and in the campaign.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lone_rank import LoneRank

from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.clock import ManualClock
from wsm.controller.errors import ActionOverdueError, RankFailedError
from wsm.states.replay import replay

#: What an action raises that finds no descriptor, no memory, no thread.
SHORTAGES = (
    OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    MemoryError(),
    RuntimeError("can't start new thread"),
)

COMMANDS = ("clear", "update", "update_in_place")


def _engine() -> ModuleType:
    path = Path(__file__).parent.parent / "actions" / "conftest.py"
    spec = importlib.util.spec_from_file_location("small_engine", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ENGINE = _engine()


def places() -> Iterator[tuple[str, str]]:
    """Every plan and action that an engine with all surfaces has."""
    plans = derive_plans(PlanOptions.from_runner(ENGINE.InMemoryRunner(), shut_down_groups=True))
    for command in COMMANDS:
        for action in getattr(plans, command).actions:
            yield command, action.name


class Rigged:
    """A group of one rank, one action of which can be made to fail."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.lone = LoneRank(
            directory,
            runner=ENGINE.InMemoryRunner(),
            load=ENGINE._load,
            clock=self.clock,
            shut_down_groups=True,
        )
        self.plans = self.lone.worker._driver._executions._plans

    def stand_before(self, command: str) -> None:
        if command != "update":
            self.lone.update(1)

    def run(self, command: str) -> Any:
        pending = (
            self.lone.controller.begin_clear() if command == "clear" else self.lone.controller.begin_update(2)
        )
        self.lone.run(pending)
        return pending.result()

    def action(self, command: str, name: str) -> Action:
        return next(one for one in getattr(self.plans, command).actions if one.name == name)

    def assert_is_named(self) -> None:
        status = self.lone.controller.status()
        assert status.over
        assert status.serving or status.state in ("CLEARED", "FAULTED")
        if status.serving:
            assert self.lone.worker.version == status.version == 1

    def assert_takes_a_good_update(self) -> None:
        if self.lone.controller.status().state == "FAULTED":
            self.lone.clear()
        assert self.lone.update(3).version == 3
        assert replay(self.lone.worker.journal).impossible is None


@pytest.fixture
def rigged(tmp_path) -> Iterator[Rigged]:
    made = Rigged(tmp_path)
    yield made
    made.lone.close()


@pytest.mark.parametrize(("command", "name"), [*places()])
@pytest.mark.parametrize("way", ["raises", "is not done", "outlasts its deadline", "lacks something"])
def test_a_failing_action_is_named_with_its_cause_and_the_group_is_repaired(
    rigged, monkeypatch, command, name, way
):
    rigged.stand_before(command)
    action = rigged.action(command, name)

    def break_off(context: ActionContext) -> None:
        if way == "raises":
            raise OSError(f"the test wants {name} to fail")
        if way == "lacks something":
            raise SHORTAGES[len(name) % len(SHORTAGES)]
        if way == "is not done":
            raise PostconditionError(action=name, expected="work that is done", found="none")
        rigged.clock.advance(action.deadline_s + 1)
        context.progress()

    monkeypatch.setattr(action, "probe" if way == "is not done" else "run", break_off)
    with pytest.raises(RankFailedError) as caught:
        rigged.run(command)
    error = caught.value
    monkeypatch.undo()
    assert (error.rank, error.action) == (0, name)
    if way == "lacks something":
        assert "limit" in error.cause
    if not isinstance(error, ActionOverdueError):
        assert "break_off" in error.remote_traceback or "check" in error.remote_traceback
    if way == "outlasts its deadline":
        assert f"its deadline is {action.deadline_s:.3g} s" in error.cause or isinstance(
            error, ActionOverdueError
        )
    rigged.assert_is_named()
    rigged.assert_takes_a_good_update()


@pytest.mark.parametrize(("command", "name"), [place for place in places() if place[0] == "update_in_place"])
def test_what_was_begun_is_undone_latest_first_and_nothing_else(rigged, monkeypatch, command, name):
    rigged.stand_before(command)
    plan = getattr(rigged.plans, command)
    undone: list[str] = []
    for one in plan.actions:
        undo = one.undo

        def noted(context: ActionContext, one: Action = one, undo: Any = undo) -> None:
            undone.append(one.name)
            undo(context)

        monkeypatch.setattr(one, "undo", noted)

    def refuse(context: ActionContext) -> None:
        raise OSError(f"the test wants {name} to fail")

    monkeypatch.setattr(rigged.action(command, name), "run", refuse)
    with pytest.raises(RankFailedError):
        rigged.run(command)
    monkeypatch.undo()
    names = list(plan.names())
    begun = names[: names.index(name) + 1]
    if rigged.lone.controller.status().serving:
        assert undone == begun[::-1]
    else:
        assert undone == []  # a tainted rank drops what it has: the discard plan ran instead
    rigged.assert_takes_a_good_update()


def test_a_refusal_to_undo_taints_the_rank(rigged, monkeypatch):
    rigged.stand_before("update_in_place")
    first, second = rigged.plans.update_in_place.actions[:2]

    def refuse(context: ActionContext) -> None:
        raise OSError("the test wants it so")

    monkeypatch.setattr(second, "run", refuse)
    monkeypatch.setattr(first, "undo", refuse)
    with pytest.raises(RankFailedError):
        rigged.run("update_in_place")
    monkeypatch.undo()
    assert rigged.lone.controller.status().state == "CLEARED"
    rigged.assert_takes_a_good_update()
