"""FastDeploy's raw int32 words drive a living group, and wsm's own commands show in them."""

from __future__ import annotations

import pytest
from living_group import LivingGroup, eventually

from tests.incident import incident
from tests.raising import raising
from wsm import EngineBridge, EngineWordsConfig, Tag
from wsm.clock import ManualClock
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2
WEIGHTS, KV, PREFIX = EngineWordKind.WEIGHTS, EngineWordKind.KV_CACHE, EngineWordKind.PREFIX_TREE
DEADLINE_S = 60.0


class Engine:
    """The engine's side: it creates the words, writes what it wants, and waits. It knows no wsm."""

    def __init__(self, group: LivingGroup, parts: int, answers: tuple[str, ...]) -> None:
        self.group = group
        self.config = EngineWordsConfig(
            suffixes=[8000 + part for part in range(parts)], answers=answers, deadline_s=DEADLINE_S
        )
        self.clock = ManualClock()
        self.words: dict[tuple[EngineWordKind, int], EngineWord] = {}
        self._bridges: list[EngineBridge] = []
        for kind in (WEIGHTS, KV, PREFIX):
            for part in range(parts):
                self.create(kind, part, NORMAL)

    def create(self, kind: EngineWordKind, part: int, value: int) -> None:
        old = self.words.pop((kind, part), None)
        if old is not None:
            old.unlink()
            old.close()
        suffix = self.config.suffixes[part]
        word = EngineWord.create(kind, suffix, value, directory=self.group.directory)
        self.words[kind, part] = word

    def bridge(self) -> EngineBridge:
        self._bridges.append(
            EngineBridge(
                self.group.controller(), self.config, clock=self.clock, directory=self.group.directory
            )
        )
        return self._bridges[-1]

    def asks(self, *values: int, kind: EngineWordKind = WEIGHTS) -> None:
        for part, value in enumerate(values):
            self.words[kind, part].store(value)

    def reads(self, kind: EngineWordKind = WEIGHTS) -> list[int]:
        return [word.read() for (other, _), word in sorted(self.words.items(), key=str) if other is kind]

    def asks_for_a_version_without_files(self) -> None:
        self.group.publish(2)
        for path in self.group.shard_files(2, 0) + self.group.shard_files(2, 1):
            path.unlink()
        self.asks(UPDATING)

    def close(self) -> None:
        for bridge in self._bridges:
            bridge.close()
        for word in self.words.values():
            word.unlink()
            word.close()


@pytest.fixture
def make_engine(make_group):
    """`make_engine(parts)`: an engine whose group serves version 1."""
    engines = []

    def make(parts: int = 1, *, answers=("weights", "kv_cache", "prefix_tree"), **settings) -> Engine:
        group = make_group(**settings)
        group.boot()
        engines.append(Engine(group, parts, answers))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def status(engine):
    return engine.group.controllers[0].status()


@pytest.mark.slow
def test_an_engine_without_wsm_clears_and_updates_through_its_word(make_engine):
    engine = make_engine()
    bridge = engine.bridge()
    engine.asks(CLEARING)
    bridge.turn()
    assert engine.reads() == [CLEARED]
    assert status(engine).state == "CLEARED"
    engine.group.publish(2)
    engine.asks(UPDATING)
    bridge.turn()
    assert engine.reads() == [NORMAL]
    assert (status(engine).serving, status(engine).version) == (True, "2")


@incident("FastDeploy#5487")
def test_an_update_that_is_asked_while_a_clear_runs_is_not_overwritten(make_engine):
    engine = make_engine()
    group = engine.group
    with engine.bridge().start():
        group.order(0, "release", "hold")
        engine.asks(CLEARING)
        group.await_held(0, "release")
        group.publish(2)
        engine.asks(UPDATING)  # the engine did not wait for CLEARED
        group.revoke(0, "release")
        eventually(lambda: engine.reads() == [NORMAL], "the update that was asked is done")
        assert status(engine).version == "2"


@incident("FastDeploy C2-9")
@pytest.mark.parametrize("asleep", [{Tag.WEIGHTS}, {Tag.KV_CACHE}], ids=["weights", "KV cache"])
def test_half_an_engine_looks_asleep_in_the_word(make_engine, asleep):
    engine = make_engine()
    bridge = engine.bridge()
    engine.group.controller().clear(tags=asleep)
    bridge.turn()
    assert engine.reads() == [CLEARED]
    engine.asks(UPDATING)  # an engine that knows no halves wakes what it finds asleep
    bridge.turn()
    assert (engine.reads(), status(engine).serving) == ([NORMAL], True)


@pytest.mark.slow
@incident("FastDeploy#5930")
@pytest.mark.parametrize(
    ("parts", "cycles"),
    [(2, 8), pytest.param(1, 50, marks=pytest.mark.slow), pytest.param(2, 50, marks=pytest.mark.slow)],
)
def test_commands_by_raw_words_leave_no_mixed_step(make_engine, parts, cycles):
    engine = make_engine(parts, load=0.3)
    group = engine.group
    with engine.bridge().start():
        for version in range(2, 2 + cycles):
            engine.asks(*[CLEARING] * parts)
            eventually(lambda: engine.reads() == [CLEARED] * parts, "cleared")
            group.publish(version)
            engine.asks(*[UPDATING] * parts)
            eventually(lambda: engine.reads() == [NORMAL] * parts, "updated")
            assert status(engine).version == str(version)
        group.await_steps()
    group.stop()
    group.assert_steps_are_pure([1 + cycles])
    group.assert_journals_are_possible()


@incident("FastDeploy#4212")
def test_the_cache_words_are_answered_when_the_caches_are_released_and_rebuilt(make_engine):
    engine = make_engine()
    bridge = engine.bridge()
    engine.asks(CLEARING, kind=KV)
    engine.asks(CLEARING, kind=PREFIX)
    bridge.turn()
    assert engine.reads(KV) == [CLEARING]  # the blocks are there still
    assert engine.reads(PREFIX) == [CLEARED]  # an engine waits for that before it asks for the weights
    engine.asks(CLEARING)
    bridge.turn()
    assert engine.reads(KV) == engine.reads(PREFIX) == [CLEARED]
    engine.asks(UPDATING, kind=KV)
    bridge.turn()
    assert engine.reads(KV) == [UPDATING]
    engine.asks(UPDATING)
    bridge.turn()
    assert engine.reads(KV) == [NORMAL]
    assert engine.reads(PREFIX) == [CLEARED]  # nobody asked


def test_a_cache_word_that_another_process_answers_is_left_to_it(make_engine):
    engine = make_engine(answers=EngineWordsConfig().answers)
    bridge = engine.bridge()
    engine.asks(CLEARING, kind=KV)
    engine.asks(CLEARING)
    bridge.turn()
    assert (engine.reads(), engine.reads(KV)) == ([CLEARED], [CLEARING])


@pytest.mark.slow_but
@incident("FastDeploy#5930")
@pytest.mark.parametrize(
    ("asked", "before", "put_back"),
    [
        ((NORMAL, CLEARING), [NORMAL, CLEARING], [NORMAL, NORMAL]),
        ((CLEARING, UPDATING), [CLEARED, UPDATING], [CLEARED, CLEARED]),
    ],
)
def test_a_part_gets_its_old_value_back_where_the_first_one_does_not_ask_in_time(
    make_engine, asked, before, put_back
):
    engine = make_engine(2)
    bridge = engine.bridge()
    engine.asks(*asked)
    bridge.turn()
    bridge.turn()
    sequence = status(engine).sequence
    engine.clock.advance(DEADLINE_S - 1)
    bridge.turn()
    assert engine.reads() == before
    engine.clock.advance(2)
    bridge.turn()
    assert engine.reads() == put_back
    assert status(engine).sequence == sequence  # the group was not asked


def test_a_disagreement_that_changes_has_its_whole_deadline_again(make_engine):
    engine = make_engine(3)
    bridge = engine.bridge()
    engine.asks(NORMAL, CLEARING, NORMAL)
    bridge.turn()
    engine.clock.advance(DEADLINE_S - 1)
    engine.asks(NORMAL, CLEARING, CLEARING)
    bridge.turn()
    engine.clock.advance(2)
    bridge.turn()
    assert engine.reads() == [NORMAL, CLEARING, CLEARING]


def test_a_word_that_the_engine_created_anew_is_found_and_shows_the_truth(make_engine):
    engine = make_engine()
    bridge = engine.bridge()
    engine.asks(CLEARING)
    bridge.turn()
    engine.create(WEIGHTS, 0, NORMAL)  # the engine was restarted, and believes that it serves
    bridge.turn()
    assert engine.reads() == [CLEARED]
    engine.create(WEIGHTS, 0, UPDATING)
    bridge.turn()
    assert engine.reads() == [NORMAL]


def test_words_that_come_late_or_go_away_do_not_end_the_bridge(make_engine):
    engine = make_engine()
    engine.words[WEIGHTS, 0].unlink()
    with engine.bridge().start():
        assert status(engine).serving
        engine.create(WEIGHTS, 0, CLEARING)
        eventually(lambda: engine.reads() == [CLEARED])


def test_a_bridge_that_died_while_updating_is_replaced_by_one_that_does_it_again(make_engine):
    engine = make_engine()
    first = engine.bridge()
    engine.asks(CLEARING)
    first.turn()
    engine.asks(UPDATING)
    first.close()  # it dies with the question open
    engine.bridge().turn()
    assert engine.reads() == [NORMAL]
    sequence = status(engine).sequence
    engine.asks(UPDATING)  # and so it does if its predecessor died between the update and the answer
    engine.bridge().turn()
    assert engine.reads() == [NORMAL]
    assert status(engine).sequence == sequence + 1
    assert engine.group.controller().update(1).sequence == sequence + 1  # the version is committed anew


def test_a_bridge_that_died_while_clearing_is_replaced_by_one_that_only_answers(make_engine):
    engine = make_engine()
    engine.group.controller().clear()
    sequence = status(engine).sequence
    engine.asks(CLEARING)
    engine.bridge().turn()
    assert engine.reads() == [CLEARED]
    assert status(engine).sequence == sequence


@incident("FastDeploy C2-9")
def test_a_command_of_wsm_takes_the_words_as_an_engine_would(make_engine):
    engine = make_engine(2)
    controller = engine.group.controller(engine_words=engine.config)
    engine.group.order(1, "release", "hold")
    pending = controller.begin_clear()
    engine.group.await_held(1, "release")
    assert engine.reads() == [CLEARING, CLEARING]
    engine.group.revoke(1, "release")
    pending.result(60)
    assert engine.reads() == [CLEARED, CLEARED]
    controller.update(1)
    assert engine.reads() == [NORMAL, NORMAL]


def test_a_command_of_wsm_is_refused_while_the_engine_commands_and_changes_nothing(make_engine):
    engine = make_engine(2)
    controller = engine.group.controller(engine_words=engine.config)
    engine.asks(NORMAL, CLEARING)
    for command in (controller.clear, controller.hold):
        with raising("engine-word-busy", match=r"model_weights_status\.8001 holds -1"):
            command()
    assert engine.reads() == [NORMAL, CLEARING]
    assert status(engine).sequence == 1
    assert status(engine).controller_pid is None


def test_words_taken_for_a_command_that_failed_say_what_the_group_is(make_engine):
    engine = make_engine()
    controller = engine.group.controller(engine_words=engine.config)
    with pytest.raises(CommandRefusedError):
        controller.update(404)
    assert engine.reads() == [NORMAL]
    engine.group.order(1, "release", "raise")
    with pytest.raises(RankFailedError):
        controller.clear()
    assert engine.reads() == [CLEARING]  # FAULTED, as an engine sees it
    engine.group.revoke(1, "release")
    controller.clear()
    assert engine.reads() == [CLEARED]


@pytest.mark.slow
def test_a_bridge_does_not_do_again_what_a_command_of_wsm_is_doing(make_engine):
    """The words are in the command's hands; to the bridge they look like an engine that asks."""
    engine = make_engine()
    controller = engine.group.controller(engine_words=engine.config)
    with engine.bridge().start():
        for version in range(2, 22):
            engine.group.publish(version)
            before = status(engine).sequence
            assert controller.update(version, wait_s=30).version == str(version)
            eventually(lambda: engine.reads() == [NORMAL])
            assert status(engine).sequence == before + 1


def test_while_a_hot_update_stages_the_words_say_normal_since_the_group_serves(make_engine):
    engine = make_engine(2)
    controller = engine.group.controller(engine_words=engine.config)
    engine.group.publish(2)
    engine.group.order(1, "stage", "hold")
    with engine.bridge().start():
        pending = controller.begin_update(2, hot=True)
        engine.group.await_held(1, "stage")
        assert engine.reads() == [NORMAL, NORMAL]
        engine.group.revoke(1, "stage")
        assert pending.result(60).hot
        assert engine.reads() == [NORMAL, NORMAL]


def test_what_an_engine_asks_during_a_hot_update_is_done_and_answered_after_it(make_engine):
    engine = make_engine()
    controller = engine.group.controller(engine_words=engine.config)
    engine.group.publish(2)
    engine.group.order(1, "stage", "hold")
    with engine.bridge().start():
        pending = controller.begin_update(2, hot=True)
        engine.group.await_held(1, "stage")
        engine.asks(CLEARING)
        engine.group.revoke(1, "stage")
        assert pending.result(60).version == "2"
        eventually(lambda: engine.reads() == [CLEARED], "the engine's clear is answered")
    assert status(engine).state == "CLEARED"


def test_a_hot_update_is_refused_while_the_engine_commands(make_engine):
    engine = make_engine()
    controller = engine.group.controller(engine_words=engine.config)
    engine.asks(CLEARING)
    with raising("engine-word-busy", match=r"model_weights_status\.8000 holds -1"):
        controller.update(1, hot=True, force=True)
    assert (status(engine).sequence, status(engine).controller_pid) == (1, None)


def test_an_update_that_falls_back_to_in_place_takes_the_words(make_engine):
    engine = make_engine(available_bytes={"1": 1_000_000})
    controller = engine.group.controller(engine_words=engine.config)
    engine.group.publish(2)
    engine.group.order(1, "write", "hold")
    pending = controller.begin_update(2, hot=True, hot_fallback="in_place")
    engine.group.await_held(1, "write")
    assert engine.reads() == [UPDATING]
    engine.group.revoke(1, "write")
    assert pending.result(60).fallback is not None
    assert engine.reads() == [NORMAL]


def test_while_the_group_is_held_no_word_of_the_weights_says_normal(make_engine):
    engine = make_engine()
    bridge = engine.bridge()
    controller = engine.group.controller(engine_words=engine.config)
    engine.group.order(0, "settle", "raise")
    with pytest.raises(RankFailedError):
        controller.hold(owner="trainer")
    assert engine.reads() == [NORMAL], "a hold that failed gives the word back"
    engine.group.revoke(0, "settle")
    engine.group.order(0, "settle", "hold")
    pending = controller.begin_hold(owner="trainer")
    engine.group.await_held(0, "settle")
    assert engine.reads() == [CLEARING], "taken as a clear takes it"
    engine.group.revoke(0, "settle")
    pending.result(60)
    assert engine.reads() == [CLEARED]
    assert (status(engine).serving, status(engine).state) == (False, "NORMAL")
    engine.group.publish(2)
    engine.asks(UPDATING)
    engine.asks(UPDATING, kind=KV)
    bridge.turn()
    assert (engine.reads(), status(engine).version) == ([CLEARED], "2")
    assert engine.reads(KV) == [NORMAL], "the KV word follows memory"
    engine.asks(CLEARING)
    bridge.turn()
    assert (engine.reads(), status(engine).state) == ([CLEARED], "CLEARED")
    engine.asks(UPDATING)
    bridge.turn()
    assert (engine.reads(), status(engine).serving) == ([CLEARED], False)
    engine.asks(UPDATING)
    with raising("engine-word-busy"):
        controller.release(owner="trainer")
    bridge.turn()
    assert engine.reads() == [CLEARED]
    assert controller.release(owner="trainer").serving
    assert engine.reads() == [NORMAL]


def test_a_lease_that_ends_a_hold_shows_normal_in_the_words(make_engine):
    engine = make_engine()
    bridge = engine.bridge()
    controller = engine.group.controller(engine_words=engine.config)
    controller.hold(owner="trainer", lease_s=0.2, on_lease="serve")
    eventually(lambda: status(engine).over and status(engine).serving)
    bridge.turn()
    assert engine.reads() == [NORMAL]


def test_words_wait_for_the_decision_of_a_process_that_lives_and_of_no_lease(make_engine):
    engine = make_engine()
    group = engine.group
    group.publish(2)
    controller = group.controller(engine_words=engine.config)
    with raising("lease-and-words") as caught:
        controller.lease(2, hot=False)
    assert "8000" in str(caught.value)
    assert caught.value.words == ("8000",)
    assert (engine.reads(), status(engine).version) == ([NORMAL], "1")
    with controller.prepare(2, hot=False):
        assert engine.reads() == [UPDATING]
    eventually(lambda: engine.reads() == [CLEARED])
    assert controller.update(1).version == "1"
    controller.lease(2, request_id="hot")  # takes none: the group serves
    assert engine.reads() == [NORMAL]
    assert controller.commit("hot").version == "2"
    assert engine.reads() == [NORMAL]


def test_a_command_with_words_ends_a_wish_that_failed_and_one_that_fails_gives_it_back(make_engine):
    engine = make_engine()
    bridge, group = engine.bridge(), engine.group
    engine.asks_for_a_version_without_files()
    bridge.turn()
    controller = group.controller(engine_words=engine.config)
    with pytest.raises(CommandRefusedError):
        controller.update(404)
    assert engine.reads() == [UPDATING]
    engine.clock.advance(60)
    bridge.turn()
    controller.update(1, force=True)
    assert engine.reads() == [NORMAL]
    sequence = status(engine).sequence
    engine.clock.advance(60)
    bridge.turn()
    assert (engine.reads(), status(engine).sequence) == ([NORMAL], sequence)


def test_a_wish_that_failed_is_ended_by_a_command_without_words_and_told_once(make_engine, caplog):
    engine = make_engine(2)
    bridge, group = engine.bridge(), engine.group
    engine.asks_for_a_version_without_files()
    for _ in range(3):
        bridge.turn()
        engine.clock.advance(60)
    assert engine.reads() == [UPDATING, UPDATING]
    told = [each.getMessage() for each in caplog.records if "asked=UPDATING error" in each.getMessage()]
    assert len(told) == 1
    group.controller().update(1, force=True)
    bridge.turn()
    assert engine.reads() == [NORMAL, NORMAL]
