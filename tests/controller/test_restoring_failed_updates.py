"""An update in place that fails behind its first byte gives its group the version back that served before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from wsm import BadInputError, ConfigurationError, Controller, Outcome, RankFailedError, Tag, WsmConfig
from wsm.command import VERSION_GONE
from wsm.controller.errors import CommandRefusedError
from wsm.strategies.tensor import TensorSpec
from wsm.testing import Fault, InMemoryRunner, LocalGroup
from wsm.testing._group import load_bytes

SPECS = [TensorSpec("layer", "F32", (4,)), TensorSpec("head", "F32", (4,))]
#: Behind the first byte.
FAILS = Fault("update_in_place", "load_weights", "is not done", rank=1)


class Source:
    """Loads any version; `spoil` says what comes of a version from now on."""

    def __init__(self):
        self.loads, self.spoiled, self.says = [], {}, {}

    def __call__(self, context, target):
        self.loads.append((context.rank, context.version))
        self.spoiled.get(context.version, lambda: None)()
        loaded = load_bytes(context, target)
        return {**loaded.facts(), **self.says}


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def group(tmp_path, source):
    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, load=source) as made:
        made.update(6)
        yield made


def fails(group, version=7, **options):
    """Update, which fails; return the error."""
    with pytest.raises(RankFailedError) as caught:
        group.update(version, **{"fault": FAILS, "on_failure": "restore", **options})
    return caught.value


def missing(group):
    return tuple(sorted(tag.value for tag in group.controller.status().missing))


def no_disk():
    raise OSError("the disk is away")


def test_the_call_returns_once_the_version_before_serves_again_and_says_so(group):
    memory = group.memory()
    error = fails(group)
    assert "failed on rank 1 in load_weights" in str(error)
    assert str(error).endswith("; version 6 serves again")
    assert (error.rank, error.restored) == (1, "6")
    assert group.step() == "6"
    assert group.memory() == memory
    group.check_journals()


def test_a_status_says_which_failure_a_restore_made_good_until_the_next_command(group):
    fails(group)
    said = group.controller.status()
    assert (said.headline, said.serving) == ("serves version 6", True)
    assert said.because == "it was loaded again behind an update that failed on rank 1 in load_weights"
    group.update(7)
    assert group.controller.status().because == ""


def test_what_is_asked_for_counts_before_what_the_group_is_configured_to(tmp_path):
    configuration = {"on_failure": "clear"}
    with LocalGroup(lambda _: InMemoryRunner(SPECS), tmp_path, configuration=configuration) as group:
        group.update(6)
        fails(group)
        assert group.step() == "6"
        error = fails(group, on_failure=None)
        assert "serve" not in str(error).partition("]")[2]
        assert missing(group) == ("kv_cache", "weights")


def test_a_group_is_cleared_whose_caller_wants_that(group):
    fails(group, on_failure="clear")
    assert missing(group) == ("kv_cache", "weights")
    assert group.update(6).outcome is Outcome.UPDATED


def test_an_update_that_is_aborted_before_its_first_byte_leaves_nothing_to_be_restored(group):
    sequence = group.controller.status().sequence
    with pytest.raises(CommandRefusedError) as caught:
        group.update(7, fault=Fault("update_in_place", "stop_admitting"), on_failure="restore")
    assert not hasattr(caught.value, "restored")
    assert group.controller.status().sequence == sequence + 1
    assert group.step() == "6"


@pytest.mark.parametrize("tags", [{Tag.WEIGHTS}, {Tag.KV_CACHE}, {Tag.WEIGHTS, Tag.KV_CACHE}])
def test_a_group_that_lacked_a_half_before_is_given_nothing_that_it_lacked(group, source, tags):
    group.clear(tags=tags)
    plan = "update_weights" if tags == {Tag.WEIGHTS} else "update"
    plan = "update_in_place_and_rebuild" if tags == {Tag.KV_CACHE} else plan
    error = fails(group, fault=Fault(plan, "load_weights", "is not done", rank=1))
    assert not hasattr(error, "restored")
    assert {tag.value for tag in tags} <= set(missing(group))
    assert (0, "6") not in source.loads[2:]


def test_what_fails_once_more_is_named_and_the_next_update_serves(group, source):
    source.spoiled["6"] = no_disk
    error = fails(group)
    assert "version 6 does not serve again: " in str(error)
    assert "the disk is away" in str(error)
    assert (error.restored, error.not_restored) == (None, "rank-failed")
    assert missing(group) == ("kv_cache", "weights")
    assert group.update(7).version == "7"


def test_other_content_under_the_label_is_nothing_to_restore(group, source):
    source.says = {"digest": "another"}
    error = fails(group)
    assert error.not_restored == "nothing-to-restore"
    assert "version 6 cannot be loaded again" in str(error)
    assert missing(group) == ("kv_cache", "weights")


@pytest.mark.parametrize("code", sorted(VERSION_GONE))
def test_a_version_that_its_source_does_not_have_any_more_is_nothing_to_restore(group, source, code):
    def gone():
        raise BadInputError("it is gone", code=code)

    source.spoiled["6"] = gone
    assert fails(group).not_restored == "nothing-to-restore"


def test_no_sender_is_waited_for_where_the_version_came_by_a_stream(group, source):
    source.says = {"streamed": True}
    group.update(6, force=True)
    del source.loads[:]
    error = fails(group)
    assert error.not_restored == "nothing-to-restore"
    assert "6" not in {version for _, version in source.loads}
    assert missing(group) == ("kv_cache", "weights")


def test_a_hold_stays_as_it_was(group):
    hold = group.hold(owner="trainer").hold
    error = fails(group, after="serve", owner="trainer")
    assert str(error).endswith("; version 6 is loaded again, held as before")
    assert group.step() is None
    assert group.release(owner="trainer").version == "6"
    assert group.step() == "6"
    group.hold()
    assert hold.owner == "trainer"


def test_the_restore_has_a_deadline_of_its_own(group, source):
    source.spoiled["6"] = lambda: group.clock.advance(0.2)
    error = fails(group, restore_s=0.05)
    assert error.not_restored == "command-timeout"
    assert "after 0.05 s" in str(error)


def test_a_prepared_version_that_is_taken_back_makes_room_for_the_one_before(group, tmp_path):
    with ThreadPoolExecutor() as callers, Controller(group.config.name, directory=tmp_path) as caller:
        prepared = polled(group, callers.submit(caller.prepare, 7, hot=False))
        receipt = polled(group, callers.submit(prepared.abort))
    assert (receipt.outcome, receipt.version, receipt.restored) == (Outcome.ABORTED, "6", True)
    assert (receipt.missing, receipt.serving) == ((), True)
    assert "and serves version 6 again" in receipt.sentence()
    assert group.step() == "6"


def test_a_leased_version_that_is_taken_back_makes_room_for_the_one_before(group, source):
    group.controller.lease(7, hot=False, request_id="seven")
    assert group.controller.abort("seven").restored
    group.controller.lease(7, hot=False, request_id="again")
    source.spoiled["6"] = no_disk
    receipt = group.controller.abort("again")
    assert (receipt.version, receipt.restored) == (None, False)
    assert "version 6 does not serve again" in receipt.warning


def polled(group, called):
    """What a call of another thread returns, while this one drives the ranks."""
    while not called.done():
        for worker in group.workers:
            worker.poll()
    for worker in group.workers:
        worker.poll()
    return called.result()


def test_there_are_two_things_that_can_become_of_it(group):
    for said in ({"on_failure": "panic"}, {"restore_s": "long"}, {"restore_s": 0}):
        with pytest.raises(BadInputError, match=next(iter(said))):
            group.controller.update(7, **said)
    with pytest.raises(ConfigurationError, match="restore, clear"):
        WsmConfig("g", 1, on_failure="panic")
