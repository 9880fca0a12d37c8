"""What rank 0 writes for others: the engine's word while a command stops the group, what became of a call."""

from __future__ import annotations

import json
import secrets
from types import SimpleNamespace

import pytest

from wsm.config import WsmConfig
from wsm.controller.errors import UnsettledError
from wsm.errors import GroupError
from wsm.fastdeploy import _entries
from wsm.fastdeploy._entries import Deciding, Entries
from wsm.fastdeploy._part_words import PartWord
from wsm.group_segment import own_group
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states import engine_words as contract
from wsm.states.engine_words import Entry
from wsm.states.epochs import Backoff
from wsm.states.vocabulary import WeightState
from wsm.worker import HOLD, SERVE

pytestmark = pytest.mark.needs("libatomic")

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


class Turns:
    """A worker that stands still for two turns."""

    rank, finished = 0, 0

    def __init__(self, engine) -> None:
        self._turns = iter((HOLD, HOLD, SERVE))
        self._engine = engine
        self.seen = []

    def poll(self):
        self.seen.append(self._engine.read())
        return next(self._turns, SERVE)

    def beat(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass


@pytest.fixture
def engine(tmp_path):
    with EngineWord.create(
        EngineWordKind.WEIGHTS, secrets.randbelow(1 << 30), NORMAL, directory=tmp_path
    ) as word:
        yield word
        word.unlink()


@pytest.fixture
def make_deciding(engine, tmp_path):
    """`make_deciding(worker)`: rank 0 with a real segment and word, and a controller of a group at rest."""
    status = SimpleNamespace(
        over=True,
        engine_state=WeightState.NORMAL,
        hold=None,
        ranks=(),
        epoch=1,
        sequence=1,
        missing=frozenset(),
    )
    with own_group(WsmConfig(name="turns", ranks=1), directory=tmp_path) as segment:
        word = PartWord(engine.path.name.rpartition(".")[2], tmp_path)

        def make(worker):
            deciding = Deciding(worker, segment, word, SimpleNamespace(status=lambda: status), deadline_s=1.0)
            deciding._adopted = True
            return deciding

        yield make
        word.close()
        segment.unlink()


def begun(result):
    """A command that stands in the group's words and is over."""
    return SimpleNamespace(over=True, result=result, written=lambda: 1)


@pytest.mark.parametrize(("asked", "during"), [(NORMAL, CLEARING), (CLEARING, CLEARING)])
def test_what_an_engine_asks_meanwhile_is_never_answered_by_the_end_of_a_hold(
    engine, make_deciding, asked, during
):
    engine.store(asked)
    worker = Turns(engine)
    make_deciding(worker).between_turns(lambda: 0)
    assert worker.seen == [asked, during, during]
    assert engine.read() == asked


@pytest.mark.parametrize(
    "error", [TypeError("no such option"), KeyboardInterrupt(), GroupError("\u00fc" * 20_000)]
)
def test_a_call_that_ends_otherwise_on_rank_0_is_no_success_on_the_other_ranks(engine, make_deciding, error):
    deciding = make_deciding(Turns(engine))

    def begin(_controller):
        raise error

    with pytest.raises(type(error)):
        deciding.together(begin)
    said = deciding._said()
    assert said.over
    assert said.came.failure
    assert len(json.dumps(said.came.failure)) < 2000


@pytest.mark.parametrize(("decision", "over"), [("COMMIT", True), ("COMMIT", False), ("ABORT", True)])
def test_a_call_whose_command_is_committed_and_done_late_is_a_success_on_every_rank(
    engine, make_deciding, decision, over
):
    """Rank 0 looks again before it answers: others may be done by then. An ABORT is a failure."""
    deciding, looks = make_deciding(Turns(engine)), []
    unsettled = UnsettledError("it waits for rank 1", request_id="1", decision=decision, waited_s=3.0)
    deciding._until_at_rest = looks.append
    deciding._controller.status().over = over

    def result():
        raise unsettled

    begin = lambda _: begun(result)  # noqa: E731 - a command
    if decision == "COMMIT" and over:
        deciding.together(begin, bound_s=3.0)
    else:
        with pytest.raises(UnsettledError):
            deciding.together(begin, bound_s=3.0)
    assert 3.0 in looks
    assert bool(deciding._said().came.failure) is not (decision == "COMMIT" and over)


def test_what_is_said_of_a_group_of_many_ranks_has_room(engine, make_deciding):
    deciding = make_deciding(Turns(engine))
    for ranks in (200, 200, 5000):
        report = SimpleNamespace(facts={"sync_s": 10 / 3, "apply_s": 1e-7}, tensors=1234)
        receipt = SimpleNamespace(ranks=[report] * ranks)
        deciding.together(lambda _, receipt=receipt: begun(lambda: receipt))
        said = deciding._said()
        assert said.over
        assert len(said.came.brought) == (200 if ranks == 200 else 0)
        assert deciding.brought == (3.3333, 0.0, 1234, 0)


def test_a_clear_that_failed_waits_before_it_is_given_again_and_another_wish_does_not_wait(
    engine, make_deciding, monkeypatch
):
    monkeypatch.setattr(contract, "AGAIN", Backoff(3600.0, 3600.0))
    engine.store(CLEARING)
    deciding = make_deciding(Turns(engine))
    deciding._controller.status().ranks = (SimpleNamespace(resident=SimpleNamespace(weights=None, kv=None)),)
    given = []

    def begin_clear(**_options):
        given.append(engine.read())
        raise GroupError("a teardown failed", code="rank-failed")

    deciding._controller.begin_clear = begin_clear
    for asked in (CLEARING, CLEARING, UPDATING, UPDATING):
        engine.store(asked)
        deciding._obey(Entry(CLEARING, block=True), asked)
    assert given == [CLEARING, UPDATING]


def test_a_look_that_fails_does_not_end_the_waking_of_a_sleeping_loop(engine, make_deciding, monkeypatch):
    monkeypatch.setattr(_entries, "WAKE_LOOK_S", 0.001)
    engine.store(CLEARED)
    deciding = make_deciding(Turns(engine))
    looks = iter((GroupError("torn"), GroupError("torn"), SimpleNamespace(over=False)))

    def status():
        look = next(looks)
        if isinstance(look, GroupError):
            raise look
        return look

    deciding._controller.status = status
    deciding._wake()
    assert engine.read() == UPDATING


@pytest.mark.parametrize("own", [CLEARING, NORMAL])
def test_a_part_that_asked_the_same_is_answered_where_a_clear_kept_the_weights(engine, make_deciding, own):
    deciding = make_deciding(Turns(engine))
    other = Entries(deciding._worker, deciding._segment, deciding._deciding)
    deciding.number = other.number = 1
    engine.store(own)
    deciding._say(CLEARING, over=False)
    assert not other._is_over()
    assert engine.read() == CLEARING
    deciding._say(NORMAL, over=True)
    assert other._is_over()
    assert engine.read() == NORMAL
    engine.store(CLEARING)  # its engine asks anew, before the deciding one does
    deciding.number = other.number = 2
    deciding._say(NORMAL, over=True)
    assert other._is_over()
    assert engine.read() == CLEARING
