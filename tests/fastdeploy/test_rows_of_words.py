"""The rows of FastDeploy's words: each wish is played by the bridge and by both loops, over real words.

The table here is written by hand: what ranks hold, how commands end, and what each reader has given and made
of the word then. A row that says anything else turns red what is played by each reader that reads it.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from wsm import Controller, EngineBridge, EngineWordsConfig
from wsm.config import WsmConfig
from wsm.errors import GroupError
from wsm.fastdeploy._entries import Deciding
from wsm.fastdeploy._part_words import PartWord
from wsm.group_segment import own_group
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.signals.segment import Segment
from wsm.states import engine_words as contract
from wsm.states.decide import Resident
from wsm.states.engine_words import Entry, Given, Held, WishRow
from wsm.states.epochs import Backoff
from wsm.states.vocabulary import KVState, OnFailure, WeightState
from wsm.status.facts import GroupStatus
from wsm.worker import HOLD

pytestmark = pytest.mark.needs("libatomic")

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2
WORDS = {"NORMAL": NORMAL, "UPDATING": UPDATING, "CLEARING": CLEARING, "CLEARED": CLEARED}

# "fails -> X": the command fails, and the ranks hold X then.
PLAYED = """
| asks     | ranks hold | commands end                   | bridge               | loop that stays      | that sleeps          |
| -------- | ---------- | ------------------------------ | -------------------- | -------------------- | -------------------- |
| CLEARING | NOTHING    |                                | CLEARED              | CLEARED              | CLEARED              |
| CLEARING | WHOLE      | NOTHING                        | clear CLEARED        | clear CLEARED        | clear CLEARED        |
| CLEARING | WHOLE      | fails WHOLE                    | clear NORMAL         | clear NORMAL         | clear UPDATING       |
| CLEARING | WHOLE      | fails NOTHING                  | clear CLEARED        | clear CLEARED        | clear CLEARED        |
| CLEARING | ON_HOLD    | NOTHING                        | clear CLEARED        | clear CLEARED        | clear CLEARED        |
| CLEARING | ON_HOLD    | fails ON_HOLD, NOTHING         | clear clear CLEARED  | clear UPDATING       | clear UPDATING       |
| CLEARING | DIFFERENT  | fails DIFFERENT, NOTHING       | clear clear CLEARED  | clear clear CLEARED  | clear clear CLEARED  |
| UPDATING | DIFFERENT  | NOTHING, WHOLE                 | clear update NORMAL  | clear update NORMAL  | clear update NORMAL  |
| UPDATING | DIFFERENT  | fails DIFFERENT, NOTHING, WHOLE | clear clear update NORMAL | clear clear update NORMAL | clear clear update NORMAL |
| UPDATING | WHOLE      | WHOLE                          | update NORMAL        | update NORMAL        | update NORMAL        |
| UPDATING | WHOLE      | fails WHOLE, WHOLE             | update update NORMAL | update update NORMAL | update update NORMAL |
| UPDATING | NOTHING    | WHOLE                          | update NORMAL        | update NORMAL        | update NORMAL        |
| UPDATING | NOTHING    | fails NOTHING                  | update CLEARED       | update CLEARED       | update CLEARED       |
| UPDATING | WHOLE      | fails DIFFERENT, NOTHING, WHOLE | update clear update NORMAL | update clear update NORMAL | update clear update NORMAL |
| UPDATING | ON_HOLD    | ON_HOLD                        | update CLEARED       | update               | update               |
| UPDATING | ON_HOLD    | fails ON_HOLD, ON_HOLD         | update update CLEARED | update update        | update update        |
"""  # noqa: E501 - a table

RESIDENT = {
    Held.WHOLE: Resident(WeightState.NORMAL, KVState.NORMAL),
    Held.ON_HOLD: Resident(WeightState.NORMAL, KVState.NORMAL),
    Held.NOTHING: Resident(WeightState.CLEARED, KVState.CLEARED),
    Held.DIFFERENT: Resident(WeightState.FAULTED, KVState.CLEARED),
}


class Played(NamedTuple):
    wish: int
    held: Held
    ends: tuple[str, ...]
    says: dict[str, str]


def played() -> list[Played]:
    names, _, *lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in PLAYED.split("\n")[1:-1]]
    return [
        Played(
            WORDS[wish],
            Held[held],
            tuple(filter(None, ends.split(", "))),
            dict(zip(names[3:], says, strict=True)),
        )
        for wish, held, ends, *says in lines
    ]


class _Over(Exception):  # noqa: N818 - no error: enough was played
    """No reader does more."""


class Group(Controller):
    """A group of one rank whose commands end as they are told to; not one that is attached anywhere."""

    def __init__(self, play: Played, word: EngineWord) -> None:
        self.held, self.ends, self.sequence = play.held, list(play.ends), 1
        self.word, self.said, self.happened = word, play.wish, []
        word.store(play.wish)

    def look(self) -> None:
        """Note what the word says, if that is something else by now."""
        if (said := self.word.read()) != self.said:
            self.said = said
            self.happened.append(WeightState(said).name)

    def status(self) -> Any:
        resident = RESIDENT[self.held]
        rank = SimpleNamespace(
            rank=0, resident=resident, weights=resident.weights.name, kv=resident.kv.name, heartbeat=1
        )
        said = SimpleNamespace(
            over=True,
            ranks=[rank],
            hold="hold" if self.held is Held.ON_HOLD else None,
            serving=self.held is Held.WHOLE,
            missing=resident.missing,
            epoch=1,
            sequence=self.sequence,
            operation="ABORT",
            has_cache_process=False,
        )
        said.engine_state = GroupStatus.engine_state.fget(said)
        return said

    def begin_clear(self, **asked: Any) -> Any:
        return self._begin("clear", asked)

    def begin_update(self, **asked: Any) -> Any:
        assert asked.pop("force"), "an engine asks for what lies there now"
        assert asked.pop("on_failure") is OnFailure.CLEAR
        return self._begin("update", asked)

    def _begin(self, operation: str, asked: dict[str, Any]) -> Any:
        assert asked["still_wanted"]()
        self.happened.append(operation)
        if not self.ends:
            raise _Over(operation)
        fails, _, held = self.ends.pop(0).rpartition(" ")
        self.sequence += 1

        def result() -> None:
            self.held = Held[held]
            if fails:
                raise GroupError("the command was to fail", code="rank-failed")

        return SimpleNamespace(over=True, sequence=self.sequence, result=result, give_up=bool)


@dataclass
class Rank0:
    """A worker whose loop stands; enough was played after some turns in a row."""

    group: Group
    rank: int = 0
    finished: int = 0
    turns: int = 0

    def poll(self) -> object:
        self.turns += 1
        self.group.look()
        if self.turns > 12:
            raise _Over
        return HOLD

    def beat(self) -> None: ...

    @property
    def weights(self) -> WeightState:
        return RESIDENT[self.group.held].weights

    @property
    def kv(self) -> KVState:
        return RESIDENT[self.group.held].kv


@dataclass
class Stage:
    """Where a wish is played: a real word, a real segment, and the code that reads the rows."""

    directory: Path
    segment: Segment
    word: EngineWord
    port: str
    readers: dict[str, Callable[[Group, int], None]] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = {
            "bridge": self._bridge,
            "loop that stays": lambda group, wish: self._loop(group, Entry(wish, block=True)),
            "that sleeps": lambda group, wish: self._loop(group, Entry(wish, block=False)),
        }

    def play(self, reader: str, play: Played) -> str:
        """Return which commands were given, and what the word has said."""
        group = Group(play, self.word)
        with suppress(_Over):
            self.readers[reader](group, play.wish)
        group.look()
        return " ".join(group.happened)

    def _bridge(self, group: Group, _wish: int) -> None:
        config = EngineWordsConfig(suffixes=[int(self.port)], answers=("weights",))
        with EngineBridge(group, config, directory=self.directory) as bridge:
            for _ in range(6):
                bridge.turn()
                group.look()

    def _loop(self, group: Group, entry: Entry) -> None:
        word = PartWord(self.port, self.directory)
        worker: Any = Rank0(group)
        deciding = Deciding(worker, self.segment, word, group, deadline_s=60.0)
        deciding._adopted = True
        try:
            deciding.stay(entry)
        finally:
            word.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(contract, "AGAIN", Backoff(0.0, 0.0))
    port = str(secrets.randbelow(1 << 30))
    with (
        EngineWord.create(EngineWordKind.WEIGHTS, port, NORMAL, directory=tmp_path) as word,
        own_group(WsmConfig(name="words", ranks=1), directory=tmp_path) as segment,
    ):
        yield Stage(tmp_path, segment, word, port)
        word.unlink()
        segment.unlink()


@pytest.mark.slow_but(
    "-1 WHOLE ('fails WHOLE'*", "-1 ON_HOLD ('fails*", "1 NOTHING ('fails*", "1 ON_HOLD ('ON_HOLD',)*"
)
@pytest.mark.parametrize("reader", ["bridge", "loop that stays", "that sleeps"])
@pytest.mark.parametrize("play", played(), ids=lambda play: f"{play.wish} {play.held.name} {play.ends}")
def test_a_wish_is_obeyed_and_answered_as_the_table_by_hand_says(
    stage: Stage, play: Played, reader: str
) -> None:
    assert stage.play(reader, play) == play.says[reader]


def test_every_case_stands_in_one_row() -> None:
    cases = itertools.product((CLEARING, UPDATING), Held, (None, False, True), (None, False, True))
    for wish, held, failed, sleeps in cases:
        rows = [
            row
            for row in contract.ROWS
            if row.wish == wish and held in row.held and failed in row.failed and sleeps in row.sleeps
        ]
        assert len(rows) == 1


def readers_of(row: WishRow) -> list[str]:
    """Return who reads a row: an entry for UPDATING never sleeps, whichever loop comes in."""
    reads = {"bridge": None, "loop that stays": False, "that sleeps": row.wish == CLEARING}
    return [reader for reader, sleeps in reads.items() if sleeps in row.sleeps]


def others(row: WishRow, reader: str) -> Iterator[Given | int]:
    """Iterate over what else may follow, and is not the same: that a wish which was tried is asked for still
    is any command, and for the bridge, which asks nothing itself, any wish."""
    asked_still = isinstance(row.then, Given) and None not in row.failed
    for then in (Given.CLEAR, Given.UPDATE, *WORDS.values()):
        same = isinstance(then, Given) or (then in contract.ASKS and reader == "bridge")
        if then != row.then and not (asked_still and same):
            yield then


@pytest.mark.slow_but("2-loop that stays")
@pytest.mark.parametrize(
    ("number", "reader"),
    [(number, reader) for number, row in enumerate(contract.ROWS) for reader in readers_of(row)],
)
def test_a_changed_row_is_seen_by_each_reader_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int, reader: str
) -> None:
    for then in others(contract.ROWS[number], reader):
        rows = list(contract.ROWS)
        rows[number] = rows[number]._replace(then=then)
        with monkeypatch.context() as patch:
            patch.setattr(contract, "ROWS", rows)
            seen = [play for play in played() if stage.play(reader, play) != play.says[reader]]
        assert seen, f"{reader} does as before where {rows[number]}"
