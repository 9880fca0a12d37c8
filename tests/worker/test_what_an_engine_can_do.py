"""What an engine cannot do is refused at admission; options and configuration never contradict each other."""

from __future__ import annotations

import pytest
from living_group import eventually
from lone_rank import load

from tests.incident import incident
from tests.raising import raising
from wsm import EngineWordsConfig, InFlightPolicy, WsmConfig
from wsm.actions import names
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.config import Deadlines
from wsm.controller.errors import CommandRefusedError
from wsm.errors import BadInputError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.testing import InMemoryRequests, InMemoryRunner, LocalGroup
from wsm.worker import Worker

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


class RequestsOfFastDeploy:
    """A scheduler that can end requests and let them finish, and cannot set them aside."""

    def __init__(self) -> None:
        self._requests = InMemoryRequests()

    def __getattr__(self, name):
        if name in ("freeze", "hold"):
            raise AttributeError(name)
        return getattr(self._requests, name)


@pytest.fixture
def runner():
    made = InMemoryRunner([])
    made.requests = RequestsOfFastDeploy()
    return made


def test_a_hot_update_that_would_keep_requests_is_refused_where_they_cannot_be_kept(make_lone, runner):
    rank = make_lone(runner=runner)
    rank.update(1)
    with pytest.raises(CommandRefusedError, match="ask for: abort, drain"):
        rank.update(2, hot=True)
    assert rank.worker.version == "1"
    assert rank.update(2, hot=True, in_flight=InFlightPolicy.DRAIN).hot
    assert rank.worker.version == "2"


@pytest.mark.parametrize(
    ("promised", "option"),
    [
        (PlanOptions(), "in_flight_policies"),
        (PlanOptions(has_graphs=True), "has_graphs"),
        (PlanOptions(auxiliaries=("mtp",)), "auxiliaries"),
    ],
)
def test_a_worker_refuses_options_that_promise_what_its_runner_lacks(runner, tmp_path, promised, option):
    with pytest.raises(BadInputError, match=option):
        Worker(WsmConfig(name="lone", ranks=1), runner, rank=0, plan_options=promised, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_options_leave_standing_what_the_configuration_alone_says():
    options = PlanOptions.from_runner(InMemoryRunner([]), deadlines={names.RELEASE_WEIGHTS: 5.0})
    configured = options.configured(shut_down_groups=False, deadlines={names.LOAD_WEIGHTS: 7.0})
    found = {action.name: action.deadline_s for plan in derive_plans(configured) for action in plan}
    assert (found[names.LOAD_WEIGHTS], found[names.RELEASE_WEIGHTS]) == (7.0, 5.0)


def test_the_action_at_hand_stands_under_its_name_and_deadline_in_the_slot_of_its_rank(make_lone):
    """Actions that an engine adds, too; no journal is asked for it."""
    seen = []

    def look(context, target):
        seen.append(rank.controller._access.group.facts().ranks[0])
        return load(context, target)

    rank = make_lone(load=look, deadlines=Deadlines(action_s={names.LOAD_WEIGHTS: 7.0}))
    rank.update(1)
    action = seen[0].action
    assert (action.name, action.deadline_s, action.collective) == (names.LOAD_WEIGHTS, 7.0, False)
    assert (seen[0].plan, action.seconds is not None) == ("update", True)
    assert rank.controller._access.group.facts().ranks[0].action is None


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"deadlines": {names.LOAD_WEIGHTS: 5.0}}, "action_s: load_weights: 7"),
        ({"shut_down_groups": False, "group_kinds": ()}, "shut_down_groups: true"),
    ],
)
def test_options_that_contradict_the_configuration_are_refused_with_both(said, message):
    with pytest.raises(BadInputError, match=message) as refused:
        PlanOptions(**said).configured(shut_down_groups=True, deadlines={names.LOAD_WEIGHTS: 7.0})
    assert str(refused.value.context["value"]) in str(refused.value)


@pytest.mark.needs("libatomic")
def test_rank_0_obeys_the_words_that_its_configuration_names_until_it_is_closed(make_lone, tmp_path):
    """As an engine that knows nothing of wsm sees it: it writes a word, steps, and waits for the answer."""
    with EngineWord.create(EngineWordKind.WEIGHTS, "8001", NORMAL, directory=tmp_path) as word:
        rank = make_lone(engine_words=EngineWordsConfig(suffixes=[8001], answers=["weights"]))
        rank.update(1)

        def reads(value):
            rank.worker.poll()
            return word.read() == value

        word.store(CLEARING)
        eventually(lambda: reads(CLEARED), "the engine is answered")
        assert rank.worker.weights.name == "CLEARED"
        word.store(UPDATING)
        eventually(lambda: not rank.controller.status().over, "the next command is open")
        rank.close()  # which nothing can end any more but the end of this rank
        word.unlink()


@incident("slime#2331")
def test_ranks_with_other_collective_work_are_not_commanded_at_all(tmp_path):
    def engine(rank):
        made = InMemoryRunner([])
        if rank == 1:
            made.kv_cache = None
        return made

    with LocalGroup(engine, tmp_path) as group, raising("plans-differ", match="rank 1"):
        group.update(1)
