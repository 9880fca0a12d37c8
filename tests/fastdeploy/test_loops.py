"""FastDeploy's loops of December 2025 and of 2026, with wsm's weight manager, by their own words."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from living_group import eventually

from tests.raising import raising
from wsm import RefusedError, Tag
from wsm.signals.errors import RoleBusyError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states import engine_words as contract
from wsm.states.engine_words import Entry, Given
from wsm.states.errors import CommandOpenError

pytestmark = [pytest.mark.processes, pytest.mark.needs("libatomic")]

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2

#: Generations, and whether an entry for CLEARING stays inside; in `make test` the newer one stands for both.
LOOPS = [pytest.param("2025", True, marks=pytest.mark.slow), ("2026", False), ("2026", True)]


def test_each_answer_lets_a_loop_out_or_keeps_it_for_a_word_that_it_reads():
    """What the table says ends: no word is left that no loop reads, and an update is for the entry for it."""
    for asked, block in itertools.product((CLEARING, UPDATING, CLEARED, NORMAL), (True, False)):
        entry = Entry(asked, block)
        for row in contract.ROWS:
            if contract.leaves(entry, row.wish):
                assert entry.sleeps
            elif entry.sleeps in row.sleeps and not isinstance(row.then, Given):
                leaves = contract.leaves(entry, row.then)
                if entry.sleeps:
                    assert leaves
                else:
                    assert leaves is (row.then == NORMAL or (row.then == asked == CLEARED and not block))


@pytest.mark.slow_but("2026-True")
@pytest.mark.parametrize(("generation", "block"), LOOPS)
def test_an_engine_clears_and_updates_through_its_word(make_job, generation, block):
    job = make_job(generation, block=block)
    for version in (2, 3):
        job.asks(CLEARING)
        job.answers(CLEARED)
        job.publish(version)
        job.asks(UPDATING)
        job.answers(NORMAL)
        stays = generation == "2025" or block
        for signal in (CLEARING,) if stays else (CLEARING, UPDATING):
            assert [said["signal"] for said in job.each_says("entered")] == [signal] * 2
            left = job.each_says("left")
        assert {said["version"] for said in left} == {str(version)}
        job.steps_on(version)
    status = job.controller().status()
    assert (status.serving, status.version) == (True, "3")
    turns = {said["turns"] for said in job.end()}
    assert len(turns) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "block"), LOOPS)
def test_an_engine_that_asks_again_the_moment_it_is_answered_is_obeyed_by_the_entry_for_that(
    make_job, generation, block
):
    """An entry leaves on what it answered, never on what the word says by then."""
    again = [(CLEARED, UPDATING), (NORMAL, CLEARING), (CLEARED, UPDATING)]
    job = make_job(generation, block=block, hurried=again)
    job.asks(CLEARING)
    once = [CLEARING] if generation == "2025" or block else [CLEARING, UPDATING]
    for signal in once * 2:
        assert [said["signal"] for said in job.each_says("entered")] == [signal] * 2
        job.each_says("left")
    job.steps_on(1)
    assert job.reads() == [NORMAL]
    assert job.controller().status().sequence == 2 + 4
    job.end()


@pytest.mark.slow
def test_parts_that_are_asked_one_after_the_other_are_one_command(make_job):
    job = make_job("2026", parts=2, part=1)
    for version in (2, 3):
        job.asks(CLEARING, part=0)
        job.answers(CLEARED, CLEARED)
        job.publish(version)
        job.asks(UPDATING, part=0)
        job.answers(NORMAL, NORMAL)
    assert job.controller().status().version == "3"
    job.end()


@pytest.mark.slow
def test_the_words_of_all_parts_say_the_same_of_an_update_that_fails(make_job):
    """Over weights that serve it is tried until the source is back; one that dropped them is answered."""
    job = make_job("2026", parts=2, part=1, block=True)
    (source := job.model / "versions").rename(away := job.directory / "away")
    job.asks(UPDATING, part=0)
    first = job.controller().status().sequence
    eventually(lambda: job.controller().status().sequence >= first + 2, "it is tried twice")
    assert job.reads() == [UPDATING, UPDATING]
    away.rename(source)
    job.answers(NORMAL, NORMAL)
    job.asks(CLEARING, part=0)
    job.answers(CLEARED, CLEARED)
    job.order(1, "write")
    job.asks(UPDATING, part=0)
    eventually(lambda: not (job.directory / "1.write").exists())
    job.answers(CLEARED, CLEARED)
    job.asks(UPDATING, part=1)
    job.asks(UPDATING, part=0)
    job.answers(NORMAL, NORMAL)
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generation", "block", "prefix_first"),
    [pytest.param("2025", True, False, marks=pytest.mark.slow), ("2026", False, True)],
)
def test_the_prefix_tree_is_asked_before_or_behind_the_weights_and_its_own_process_alone_answers(
    make_job, generation, block, prefix_first
):
    """FastDeploy's engine asks one after the other; which comes first has changed from build to build."""
    job = make_job(generation, block=block)
    with EngineWord.create(EngineWordKind.PREFIX_TREE, job.ports[0], NORMAL, directory=job.directory) as tree:
        for wish, answer in ((CLEARING, CLEARED), (UPDATING, NORMAL)):
            for of_tree in (prefix_first, not prefix_first):
                if not of_tree:
                    before = tree.read()
                    job.asks(wish)
                    job.answers(answer)
                    assert tree.read() == before
                else:
                    weights = job.reads()
                    tree.store(wish)
                    silent = job.controller().status()  # the ranks take no notice of a tree that is silent
                    assert (silent.over, job.reads(), tree.read()) == (True, weights, wish)
                    tree.store(answer)
        tree.unlink()
    job.steps_on(1)
    job.end()


@pytest.mark.slow
def test_commands_of_other_processes_are_refused_where_the_loop_does_not_poll(make_job):
    job = make_job("2026")
    with raising("loop-does-not-poll") as refused:
        job.controller().update(1, force=True)
    place, _, line = refused.value.context["place"].rpartition(":")
    assert Path(place).read_text().splitlines()[int(line) - 1].strip() == "while True:"
    job.asks(CLEARING)
    job.answers(CLEARED)
    advice = " ".join(job.controller().status().advice)
    assert "wsm update" in advice
    assert "ask the engine for it" in advice, "whoever types that is refused"
    job.asks(UPDATING)
    job.answers(NORMAL)
    job.end()


def clears(trainer) -> bool:
    """Whether the loop looks at commands by now."""
    try:
        trainer.clear()
    except (CommandOpenError, RoleBusyError):  # what FastDeploy has built is just found
        return False
    except RefusedError as error:
        if error.code != "loop-does-not-poll":
            raise
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("generation", [pytest.param("2025", marks=pytest.mark.slow), "2026"])
def test_a_loop_that_polls_obeys_a_trainer_and_shows_it_to_the_engine(make_job, generation):
    job = make_job(generation, polls=True, streams_look_s=3.0)
    trainer = job.controller()
    eventually(lambda: clears(trainer))  # from its first turn on, with the KV cache that FastDeploy has built
    trainer.update(1)
    job.publish(2)
    assert trainer.update(2).version == "2"
    job.steps_on(2)
    job.order(0, "unused")
    (job.directory / "requests").touch()
    eventually(lambda: not (job.directory / "requests").exists())
    trainer.clear()
    job.answers(CLEARED)
    trainer.update(1)
    assert job.reads()[0] < 0  # every stream of the engine is to see it
    job.answers(NORMAL)
    trainer.hold()
    job.answers(CLEARED)
    trainer.release()
    job.answers(NORMAL)
    before = trainer.status().sequence
    job.asks(CLEARING)
    job.answers(CLEARED)
    job.asks(UPDATING)
    job.answers(NORMAL)
    job.end()
    assert trainer.status().sequence == before + 2, "it is loaded once"


@pytest.mark.slow
def test_a_load_at_start_that_fails_raises_on_every_rank(make_job):
    job = make_job(starts=False)
    job.order(0, "write")
    job.launch()
    for program in job.programs:
        assert "no weights after the load at start" in "".join(program.last_lines())


@pytest.mark.slow_but
@pytest.mark.parametrize(("generation", "block"), LOOPS)
def test_fastdeploys_own_check_works_over_the_managers_methods(make_job, generation, block):
    job = make_job(generation, block=block, own_check=True)
    for version in (2, 3):
        job.asks(CLEARING)
        job.answers(CLEARED)
        assert job.controller().status().state == "CLEARED"
        job.publish(version)
        job.each_says("seen")  # FastDeploy's own looks at the level, and misses a wish that comes sooner
        job.asks(UPDATING)
        job.answers(NORMAL)
        job.each_says("seen")
        eventually(lambda: job.controller().status().over)
        job.steps_on(version)
    job.end()


@pytest.mark.slow
def test_methods_that_are_called_one_by_one_are_the_ranks_parts_of_group_commands(make_job):
    job = make_job(calls=True, starts=False)
    job.launch()
    assert {(tuple(said["held"]), said["version"]) for said in job.each_says("called")} == {((), "1")}
    for rank, said in enumerate(job.each_says("updated")):
        assert (said["version"], said["rank"]) == ("1", rank)
        assert {"sync_cost", "update_cost", "total_cost"} <= said.keys()
    first, second = job.each_says("failed")
    assert "0 wants" not in second["error"]
    assert (first["code"], second["code"]) == ("rank-failed", "call-failed")
    assert first["error"] in second["error"]
    assert all("CLEARED" in said["error"] for said in job.each_says("not_there"))
    assert [said["version"] for said in job.each_says("announced")] == ["1", "1"]
    missed, told = job.each_says("not_announced")
    assert (missed["code"], told["code"]) == ("no-version", "call-failed")
    assert missed["error"] in told["error"]
    assert {said["word"] for said in job.each_says("shown")} == {UPDATING}
    assert {said["version"] for said in job.each_says("ready")} == {"1"}
    job.end()


@pytest.mark.slow
def test_versions_under_training_names_reach_the_model_that_says_what_they_are_called(make_job):
    job = make_job(trained=True)
    job.asks(CLEARING)
    job.answers(CLEARED)
    job.settings["trained"] = False
    job.publish(2)
    job.asks(UPDATING)
    job.answers(NORMAL)
    job.steps_on(2)
    job.end()


@pytest.mark.parametrize("block", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_trainer_wakes_a_loop_that_sleeps_behind_the_engines_clear(make_job, block):
    job = make_job(polls=True, block=block)
    job.each_says("stepped")
    trainer = job.controller()
    for version in (2, 3):
        job.asks(CLEARING)
        job.answers(CLEARED)
        job.publish(version)
        assert trainer.update(version).version == str(version)
        job.answers(NORMAL)
    assert trainer.status().sequence == 2 + 4  # nothing was loaded twice
    job.asks(CLEARING)
    job.answers(CLEARED)
    trainer.update(tags={Tag.WEIGHTS})
    assert job.reads() != [NORMAL]
    trainer.update(tags={Tag.KV_CACHE})
    job.answers(NORMAL)
    job.end()


@pytest.mark.slow
def test_weights_that_an_engine_asks_for_under_a_hold_come_and_no_rank_steps_before_its_release(make_job):
    job = make_job(polls=True, block=True)
    job.each_says("stepped")
    trainer = job.controller()
    job.asks(CLEARING)
    job.answers(CLEARED)
    trainer.hold()
    job.publish(2)
    job.asks(UPDATING)
    eventually(lambda: trainer.status().over and not trainer.status().missing)
    status = trainer.status()
    assert (status.version, status.serving) == ("2", False)
    assert job.reads() == [UPDATING]
    assert trainer.status().sequence == status.sequence, "it is loaded once"
    trainer.release()
    job.answers(NORMAL)
    job.steps_on(2)
    job.end()
