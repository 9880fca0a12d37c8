"""What becomes of the engine's word while a command of another process stops the group between two turns."""

from __future__ import annotations

import secrets
from types import SimpleNamespace

import pytest

from wsm.config import WsmConfig
from wsm.fastdeploy._entries import Deciding, PartWord
from wsm.group_segment import own_group
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.vocabulary import WeightState
from wsm.worker import HOLD, SERVE

pytestmark = pytest.mark.needs("libatomic")

NORMAL, CLEARING = 0, -1


class Turns:
    """A worker that stands still for two turns."""

    rank = 0

    def __init__(self, engine) -> None:
        self._turns = iter((HOLD, HOLD, SERVE))
        self._engine = engine
        self.seen = []

    def poll(self):
        self.seen.append(self._engine.read())
        return next(self._turns)

    def beat(self) -> None:
        pass


@pytest.fixture
def engine(tmp_path):
    with EngineWord.create(
        EngineWordKind.WEIGHTS, secrets.randbelow(1 << 30), NORMAL, directory=tmp_path
    ) as word:
        yield word
        word.unlink()


@pytest.mark.parametrize(("asked", "during"), [(NORMAL, CLEARING), (CLEARING, CLEARING)])
def test_what_an_engine_asks_meanwhile_is_never_answered_by_the_end_of_a_hold(
    engine, tmp_path, asked, during
):
    engine.store(asked)
    worker = Turns(engine)
    status = SimpleNamespace(over=True, engine_state=WeightState.NORMAL, hold=None)
    with own_group(WsmConfig(name="turns", ranks=1), directory=tmp_path) as segment:
        word = PartWord(engine.path.name.rpartition(".")[2], tmp_path)
        deciding = Deciding(worker, segment, word, SimpleNamespace(status=lambda: status), deadline_s=1.0)
        deciding._adopted = True
        deciding.between_turns(lambda: 0)
        word.close()
        segment.unlink()
    assert worker.seen == [asked, during, during]
    assert engine.read() == asked
