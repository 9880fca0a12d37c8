"""A KV-cache process beside real ranks: every command asks it, waits for it, and names it when it fails."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from living_group import LivingGroup, Program, eventually

import wsm
from wsm import EngineBridge, EngineWordsConfig, Outcome, Tag
from wsm.clock import ManualClock
from wsm.config import ENGINE_WORDS, ConfigurationError, config_from_mapping
from wsm.controller.errors import CommandTimeoutError, RankFailedError, RankLostError, UnsettledError
from wsm.errors import GroupError
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.view import View
from wsm.states.vocabulary import KVState
from wsm.states.words import CommandWord, Operation, StatusCode, StatusWord
from wsm.testing import InMemoryKVCache
from wsm.worker.cache_participant import CacheWords

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).parent / "cache_process.py"
W, K = frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})
NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2


class GroupWithCache:
    """Two ranks and their KV-cache process, which has number 2."""

    CACHE = 2

    def __init__(self, group: LivingGroup) -> None:
        self.group = group
        self.group.publish(1)
        for rank in range(group.ranks):
            group.launch(rank)
        self.cache = self.launch()
        for rank in range(group.ranks):
            group.programs[rank].says("ready")
        self.cache.says("ready")
        self.controller = group.controller()

    def launch(self) -> Program:
        settings = {"directory": str(self.group.directory), "config": self.group.config}
        self.cache = self.group.programs[self.CACHE] = Program(PROGRAM, json.dumps(settings))
        return self.cache

    def states(self) -> list[tuple[str, str]]:
        return [(each.weights, each.kv) for each in self.controller.status().ranks]

    def journal_is_possible(self) -> bool:
        path = self.group.directory / "journals" / f"rank{self.CACHE}.ndjson"
        with path.open() as lines:
            return replay(read_ndjson(lines)).impossible is None


@pytest.fixture
def make(make_group: Callable[..., LivingGroup]) -> Callable[..., GroupWithCache]:
    def made(**config) -> GroupWithCache:
        return GroupWithCache(make_group(config={"kv_cache_process": True, **config}, load=0.3))

    return made


@pytest.fixture
def served(make: Callable[..., GroupWithCache]) -> GroupWithCache:
    group = make()
    group.controller.update(1)
    return group


def test_it_takes_part_in_every_command_and_in_no_step(served: GroupWithCache) -> None:
    assert served.states() == [("NORMAL", "NORMAL")] * 3
    served.group.await_steps()
    cleared = served.controller.clear()
    assert cleared.ranks[2].facts["kv_released_bytes"] > 0
    assert served.states() == [("CLEARED", "CLEARED")] * 3
    served.group.publish(2)
    assert served.controller.update(2).version == "2"
    assert served.controller.status().serving
    again = served.controller.update(2, force=True)
    assert again.manifest_digest == served.controller.update(2).manifest_digest
    assert served.journal_is_possible()


def test_each_half_goes_and_comes_with_it(served: GroupWithCache) -> None:
    served.controller.clear(tags=K)
    assert served.states() == [("NORMAL", "CLEARED")] * 3
    assert served.controller.update().outcome is Outcome.UPDATED
    served.controller.clear(tags=W)
    assert served.states() == [("CLEARED", "NORMAL")] * 3
    assert served.controller.update(1, tags=W).missing == ()
    assert served.controller.status().serving
    assert served.journal_is_possible()


def test_a_hot_update_empties_its_blocks_too(served: GroupWithCache) -> None:
    served.group.publish(2)
    receipt = served.controller.update(2, hot=True)
    assert receipt.hot
    assert served.controller.status().serving
    assert served.journal_is_possible()


def test_the_group_waits_for_it_and_says_for_whom(served: GroupWithCache) -> None:
    served.group.order(2, "release_kv", "hold")
    pending = served.controller.begin_clear(deadline_s=60)
    served.group.await_held(2, "release_kv")
    eventually(lambda: served.group.codes()[:2] == ["DONE_CLEARED"] * 2, "the ranks are done")
    assert not pending.over
    served.group.revoke(2, "release_kv")
    assert pending.result(60).outcome is Outcome.CLEARED


def test_a_release_that_fails_there_is_named_and_ends_as_the_tables_say(served: GroupWithCache) -> None:
    served.group.order(2, "release_kv", "raise")
    with pytest.raises(RankFailedError, match="failed on the KV-cache process in release_kv_cache") as caught:
        served.controller.clear()
    assert caught.value.rank == 2
    assert served.states() == [("CLEARED", "CLEARED")] * 2 + [("FAULTED", "CLEARING")]
    served.group.revoke(2, "release_kv")
    served.controller.clear()
    assert served.states() == [("CLEARED", "CLEARED")] * 3
    assert served.controller.update(1).outcome is Outcome.UPDATED


def test_a_rebuild_that_fails_there_leaves_nobody_serving(served: GroupWithCache) -> None:
    served.controller.clear(tags=K)
    served.group.order(2, "rebuild", "raise once")
    with pytest.raises(RankFailedError, match="the KV-cache process in rebuild_kv_cache"):
        served.controller.update(tags=K)
    assert served.states() == [("NORMAL", "CLEARED")] * 3
    assert served.controller.update(tags=K).missing == ()


@pytest.mark.slow_but
@pytest.mark.parametrize("tags", [W, K], ids=["weights", "KV cache"])
def test_it_gives_back_the_half_that_the_ranks_did_though_it_saw_nothing_but_the_abort(
    served: GroupWithCache, tags: frozenset[Tag]
) -> None:
    served.group.order(1, "settle", "hold")
    served.cache.freeze()
    pending = served.controller.begin_clear(tags=tags)
    served.group.await_held(1, "settle")
    eventually(lambda: served.group.codes()[0] == "DONE_CLEARED", "rank 0 is done")
    served.group.order(1, "release" if tags == W else "release_kv", "raise once")
    served.group.revoke(1, "settle")
    eventually(lambda: served.controller.status().operation == "ABORT", "it is aborted")
    served.cache.thaw()
    with pytest.raises(RankFailedError):
        pending.result(60)
    eventually(lambda: served.controller.status().over, "the command is over")
    assert served.states() == [("CLEARED", "NORMAL") if tags == W else ("NORMAL", "CLEARED")] * 3
    assert served.controller.update(1).missing == ()
    assert served.journal_is_possible()


def test_its_death_is_the_loss_of_a_participant(served: GroupWithCache) -> None:
    served.cache.kill()
    with pytest.raises(RankLostError, match="the KV-cache process is gone") as caught:
        served.controller.clear()
    assert caught.value.ranks == (2,)
    assert served.states()[:2] == [("NORMAL", "NORMAL")] * 2


def test_its_death_within_a_command_ends_that_command(served: GroupWithCache) -> None:
    served.group.order(2, "release_kv", "hold")
    pending = served.controller.begin_clear()
    served.group.await_held(2, "release_kv")
    served.cache.kill()
    with pytest.raises(RankLostError, match="the KV-cache process is gone"):
        pending.result(60)


def test_a_stopped_one_is_named_by_the_deadline(served: GroupWithCache) -> None:
    served.cache.freeze()
    with pytest.raises(GroupError, match="the KV-cache process"):
        served.controller.clear(deadline_s=0.5, settle_s=0.5)
    served.cache.thaw()
    eventually(lambda: served.controller.status().over, "the command is over")
    assert served.controller.clear().outcome in (Outcome.CLEARED, Outcome.ALREADY_CLEARED)
    assert served.controller.update(1).outcome is Outcome.UPDATED


def test_a_group_without_one_refuses_it(make_group: Callable[..., LivingGroup]) -> None:
    config = config_from_mapping(make_group().config)
    with pytest.raises(ConfigurationError, match="kv_cache_process: true"):
        wsm.CacheParticipant(config, InMemoryKVCache())


class KVWord:
    """An engine's side of the words: it writes what it wants, and remembers every value that it saw."""

    def __init__(self, group: GroupWithCache, config: EngineWordsConfig) -> None:
        directory = group.group.directory
        (suffix,) = config.suffixes
        self.weights = EngineWord(EngineWordKind.WEIGHTS, suffix, directory=directory)
        self.word = EngineWord(EngineWordKind.KV_CACHE, suffix, directory=directory)
        self.seen = [self.word.read()]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._closing.wait(0.00005):
            value = self.word.read()
            if value != self.seen[-1]:
                self.seen.append(value)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.word.close()
        self.weights.close()


@pytest.mark.needs("libatomic")
def test_a_word_is_led_back_to_normal_though_the_cache_was_back_before_it_said_cleared(tmp_path: Path):
    def saying(kv: KVState) -> View:
        status = StatusWord(1, 1, StatusCode.DONE_KEPT, kv=int(kv))
        return View(CommandWord(1, 1, Operation.NONE), [], [status])

    config = EngineWordsConfig(suffixes=[8002], answers=ENGINE_WORDS)
    with contextlib.closing(
        EngineWord.create(EngineWordKind.KV_CACHE, 8002, NORMAL, directory=tmp_path)
    ) as word:
        shown = CacheWords(config, tmp_path)
        shown.show(KVState.CLEARED, saying(KVState.CLEARED))
        assert word.read() == int(KVState.CLEARING)
        for _ in range(3):
            shown.show(KVState.NORMAL, saying(KVState.NORMAL))
        assert word.read() == NORMAL

        word.compare_exchange(NORMAL, int(KVState.CLEARING))  # an engine asks, and nobody has obeyed yet
        shown.show(KVState.NORMAL, saying(KVState.NORMAL))
        assert word.read() == int(KVState.CLEARING)
        shown.close()
        word.unlink()


@pytest.fixture
def engine(make: Callable[..., GroupWithCache], tmp_path: Path):
    """A served group, the engine's view of its words, and the bridge that obeys the weights word."""
    config = EngineWordsConfig(suffixes=[8001], answers=ENGINE_WORDS)
    group = make(engine_words={"suffixes": [8001], "answers": ENGINE_WORDS})
    words = [
        EngineWord.create(kind, 8001, NORMAL, directory=group.group.directory)
        for kind in (EngineWordKind.WEIGHTS, EngineWordKind.KV_CACHE, EngineWordKind.PREFIX_TREE)
    ]
    group.controller.update(1)
    eventually(lambda: words[1].read() == NORMAL, "the cache is back")
    watched = KVWord(group, config)
    bridge = EngineBridge(group.group.controller(), config, directory=group.group.directory)
    yield group, watched, bridge
    bridge.close()
    watched.close()
    for word in words:
        word.unlink()
        word.close()


@pytest.mark.needs("libatomic")
def test_fastdeploy_c2_21_and_c2_22_its_word_follows_the_cache_and_is_cleared_when_all_memory_is_free(
    engine,
) -> None:
    group, word, bridge = engine
    group.group.order(1, "release_kv", "hold")  # a rank that still holds its own part
    word.weights.store(CLEARING)
    turning = threading.Thread(target=bridge.turn)
    turning.start()
    group.group.await_held(1, "release_kv")
    eventually(lambda: group.states()[2][1] == "CLEARED", "the KV-cache process has released")
    eventually(lambda: word.seen[-1] == CLEARING)  # what watches may be later than this thread
    group.group.revoke(1, "release_kv")
    turning.join(60)
    eventually(lambda: word.seen[-1] == CLEARED)
    word.weights.store(UPDATING)
    bridge.turn()
    eventually(lambda: word.seen[-1] == NORMAL)
    # Whoever watches may sleep through UPDATING, where no memory is waited for.
    assert [value for value in word.seen if value != UPDATING] == [NORMAL, CLEARING, CLEARED, NORMAL]


@pytest.mark.needs("libatomic")
def test_fastdeploy_c2_21_the_ranks_side_never_answers_its_word(engine) -> None:
    group, word, bridge = engine
    group.cache.freeze()
    word.word.store(UPDATING)  # the group serves: a bridge without a KV-cache process would answer
    for _ in range(3):
        bridge.turn()
    assert word.word.read() == UPDATING
    group.cache.thaw()
    eventually(lambda: word.word.read() == NORMAL)


def test_the_command_line_and_status_call_it_what_it_is(served: GroupWithCache) -> None:
    served.cache.kill()
    status = served.controller.status()
    assert [each.life for each in status.ranks] == ["alive", "alive", "dead"]
    assert status.ranks[2].step_kind is None
    assert not status.serving


def test_a_deadline_that_expires_names_it(served: GroupWithCache) -> None:
    served.group.order(2, "release_kv", "hold")
    clock = ManualClock()
    pending = served.group.controller(clock=clock).begin_clear(deadline_s=10, settle_s=10)
    served.group.await_held(2, "release_kv")
    clock.advance(20)
    eventually(lambda: served.controller.status().operation == "ABORT", "its deadline has passed")
    clock.advance(20)
    with pytest.raises((CommandTimeoutError, UnsettledError), match="the KV-cache process"):
        pending.result(60)
    served.group.revoke(2, "release_kv")
