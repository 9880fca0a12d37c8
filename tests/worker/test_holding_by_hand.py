"""What a rank makes of a hold: it stands with all that it has, whatever comes, until it is released."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from living_group import eventually
from lone_rank import SPECS
from msgspec import structs

from tests.segment_bytes import damage_arguments_slot
from wsm import HOLD, SERVE
from wsm.actions.options import PlanOptions
from wsm.command import ARGUMENTS_KIND, CommandArguments
from wsm.committed_record import write_record
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.errors import CommandRefusedError
from wsm.controller.group_view import GroupView
from wsm.controller.recovery import Recovery
from wsm.journal import entry as kinds
from wsm.journal.replay import replay
from wsm.receipt import Outcome
from wsm.signals.lock_file import LockHold
from wsm.states.decide import is_over
from wsm.states.holding import UNKNOWN_HOLD, Hold
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy
from wsm.states.words import CommandWord, Operation, StatusCode
from wsm.testing import InMemoryRequests, InMemoryRunner
from wsm.worker.errors import NotServingError

Ask = Callable[..., CommandWord]

HOLDS = CommandArguments(
    "hold",
    in_flight=InFlightPolicy.KEEP,
    kv_policy=KVPolicy.KEEP,
    tags=frozenset(),
    after=After.HELD,
    hold=Hold("h1", "trainer"),
    of_admission=True,
)
RELEASES = structs.replace(HOLDS, request_id="release", after=After.SERVE, hold=None)


@pytest.fixture
def ask(lone) -> Iterator[Ask]:
    """`ask(operation, arguments, code)`: write a command, and poll until the rank says `code` of it."""
    group = GroupView(lone.segment)

    def command(operation: Operation, asked: CommandArguments, code: StatusCode) -> CommandWord:
        before = group.view().command
        word = CommandWord(before.epoch, before.sequence + 1, operation)
        slot = lone.segment.arguments(word.sequence)
        slot.write(word.epoch, word.sequence, ARGUMENTS_KIND, asked.to_bytes())
        group.write_command(word)
        poll_until(lone, group, code)
        return word

    with group.role.acquire(0):  # or the group would end the command by itself
        yield command
    group.close()


def poll_until(lone, group: GroupView, code: StatusCode) -> None:
    for _ in range(3000):
        lone.worker.poll()
        if group.view().statuses[0].code is code:
            return
    pytest.fail(f"the rank never said {code.name}, but {group.view().statuses[0]}")


def decide(lone, word: CommandWord, operation: Operation, code: StatusCode) -> None:
    group = GroupView(lone.segment)
    group.write_command(word._replace(operation=operation))
    poll_until(lone, group, code)
    group.close()


def commit(lone, word: CommandWord) -> None:
    decide(lone, word, Operation.COMMIT, StatusCode.DONE_COMMITTED)


def hold(lone, ask: Ask, asked: CommandArguments = HOLDS) -> None:
    commit(lone, ask(Operation.HOLD, asked, StatusCode.PREPARED))


def release(lone, ask: Ask) -> None:
    commit(lone, ask(Operation.RELEASE, RELEASES, StatusCode.PREPARED))


def stands(lone) -> bool:
    with pytest.raises(NotServingError, match="held"), lone.worker.step():
        pytest.fail("a step began in a held group")
    return all(lone.worker.poll() is HOLD for _ in range(5))


def serves(lone) -> bool:
    if lone.worker.poll() is not SERVE:
        return False
    with lone.worker.step():
        lone.runner.requests.advance()
    return True


def test_no_step_begins_between_a_hold_and_its_release_and_all_memory_stays(lone, ask: Ask) -> None:
    before = bytes(lone.runner.weights.readable("weight"))
    lone.runner.requests.submit(50)
    assert serves(lone)
    hold(lone, ask)
    assert stands(lone)
    assert (lone.worker.version, bytes(lone.runner.weights.readable("weight"))) == ("1", before)
    assert not lone.runner.requests.is_admitting()
    release(lone, ask)
    assert serves(lone)
    assert lone.runner.requests.in_flight() == 1, "the request that was set aside goes on"
    entries = list(lone.worker.journal)
    assert replay(entries).impossible is None
    moved = [entry.facts["event"] for entry in entries if entry.facts.get("machine") == "admission"]
    assert (moved, entries[-1].kind) == (["hold", "release"], entries[-1].kind)


@pytest.mark.parametrize("code", [StatusCode.PREPARED, StatusCode.DRAINING])
def test_a_hold_that_is_aborted_leaves_cache_and_admission_as_they_were(
    lone, ask: Ask, code: StatusCode
) -> None:
    forgotten = lone.runner.kv_cache.forgotten
    if code is StatusCode.DRAINING:
        lone.runner.requests.submit(10_000)
        assert serves(lone)
        asked = structs.replace(HOLDS, in_flight=InFlightPolicy.DRAIN)
    else:
        asked = structs.replace(HOLDS, kv_policy=KVPolicy.DROP)
    word = ask(Operation.HOLD, asked, code)
    decide(lone, word, Operation.ABORT, StatusCode.DONE_KEPT)
    assert serves(lone)
    assert lone.runner.requests.is_admitting()
    assert lone.runner.kv_cache.forgotten == forgotten


def test_a_hold_forgets_blocks_behind_its_decision_and_only_if_it_says_drop(lone, ask: Ask) -> None:
    forgotten = lone.runner.kv_cache.forgotten
    hold(lone, ask)
    assert lone.runner.kv_cache.forgotten == forgotten
    release(lone, ask)
    word = ask(Operation.HOLD, structs.replace(HOLDS, kv_policy=KVPolicy.DROP), StatusCode.PREPARED)
    assert lone.runner.kv_cache.forgotten == forgotten
    commit(lone, word)
    assert lone.runner.kv_cache.forgotten == forgotten + 1


@pytest.mark.parametrize("after", [After.AS_BEFORE, After.SERVE])
def test_an_update_under_a_hold_stays_under_it_unless_it_is_to_serve(lone, ask: Ask, after: After) -> None:
    hold(lone, ask)
    asked = CommandArguments("update", "2", in_flight=InFlightPolicy.KEEP, after=after)
    commit(lone, ask(Operation.UPDATE, asked, StatusCode.PREPARED))
    assert lone.worker.version == "2"
    assert stands(lone) if after is After.AS_BEFORE else serves(lone)
    assert lone.runner.requests.is_admitting() is (after is After.SERVE)
    assert replay(list(lone.worker.journal)).impossible is None


def test_an_update_may_hold_an_open_group_and_one_that_fails_under_a_hold_ends_nothing(
    lone, ask: Ask
) -> None:
    held = CommandArguments("update", "2", after=After.HELD, hold=Hold("h1", "trainer"))
    commit(lone, ask(Operation.UPDATE, held, StatusCode.PREPARED))
    assert stands(lone)
    hot = CommandArguments("hot", "1", in_flight=InFlightPolicy.KEEP, after=After.SERVE)
    word = ask(Operation.HOT_UPDATE, hot, StatusCode.PREPARED)
    assert stands(lone), "what is staged beside a held group lets no step begin"
    decide(lone, word, Operation.HOT_ABORT, StatusCode.DONE_KEPT)
    assert stands(lone)
    assert not lone.runner.requests.is_admitting()


@pytest.mark.parametrize("operation", [Operation.UPDATE, Operation.HOT_UPDATE, Operation.CLEAR])
def test_under_a_hold_requests_are_kept_or_ended_and_drained_only_where_there_are_none(
    lone, ask: Ask, operation: Operation
) -> None:
    requests, versions = lone.runner.requests, iter("23456")
    back = CommandArguments("back", "2", in_flight=InFlightPolicy.KEEP)
    commits = Operation.HOT_COMMIT if operation.is_hot else Operation.COMMIT
    aborts = Operation.HOT_ABORT if operation.is_hot else Operation.ABORT

    def asked(policy: InFlightPolicy) -> CommandArguments:
        if operation is Operation.CLEAR:
            return CommandArguments("clear", in_flight=policy, clears=True)
        return CommandArguments("update", next(versions), in_flight=policy)

    def done(policy: InFlightPolicy) -> None:
        if operation is Operation.CLEAR:
            ask(operation, asked(policy), StatusCode.DONE_CLEARED)
            commit(lone, ask(Operation.UPDATE, back, StatusCode.PREPARED))
        else:
            word = ask(operation, asked(policy), StatusCode.PREPARED)
            decide(lone, word, commits, StatusCode.DONE_COMMITTED)
        assert stands(lone)

    requests.submit(50)
    assert serves(lone)
    hold(lone, ask)
    word = ask(operation, asked(InFlightPolicy.DRAIN), StatusCode.REFUSED)
    decide(lone, word, aborts, StatusCode.DONE_KEPT)
    assert (requests.set_aside(), lone.worker.version, stands(lone)) == (1, "1", True)
    done(InFlightPolicy.KEEP)
    assert (requests.set_aside(), requests.aborted) == (1, 0)
    done(InFlightPolicy.ABORT)
    assert (requests.set_aside(), requests.aborted) == (0, 1)
    done(InFlightPolicy.DRAIN)
    assert replay(list(lone.worker.journal)).impossible is None


def test_a_rank_that_enters_an_epoch_stands_as_the_committed_word_says(lone, ask: Ask) -> None:
    hold(lone, ask)
    group = GroupView(lone.segment)
    view = group.view()
    record = structs.replace(group.committed(view), sequence=view.command.sequence, hold=UNKNOWN_HOLD)
    write_record(lone.segment, view.command.epoch, record)
    group.write_committed(record.word)
    group.write_command(CommandWord(2, view.command.sequence, Operation.NONE))
    poll_until(lone, group, StatusCode.ATTACHED)
    asked = CommandArguments("restore", "1", in_flight=InFlightPolicy.KEEP, restores=True)
    commit(lone, ask(Operation.UPDATE, asked, StatusCode.PREPARED))
    assert (lone.worker.version, stands(lone)) == ("1", True)
    release(lone, ask)
    assert serves(lone)
    served = [entry for entry in list(lone.worker.journal) if entry.kind == kinds.SERVED_VERSION]
    assert served[-1].facts["version"] == "1"
    group.close()


@pytest.mark.parametrize("asked", ["hold", "hold of a cleared group", "release", "an update that holds"])
def test_a_commit_whose_arguments_are_damaged_ends_as_it_was_decided_once_its_controller_is_gone(
    lone, asked: str
) -> None:
    group = GroupView(lone.segment)
    if asked == "release":
        lone.run(lone.controller.begin_hold())
    if asked.endswith("cleared group"):
        lone.clear()
    before, held = group.committed(group.view()), asked != "release"
    with group.role.acquire(0):
        last = group.view().command
        update = CommandArguments("update", "2", after=After.HELD)
        named = {"release": (Operation.RELEASE, RELEASES), "an update that holds": (Operation.UPDATE, update)}
        operation, arguments = named.get(asked, (Operation.HOLD, HOLDS))
        word = CommandWord(last.epoch, last.sequence + 1, operation)
        slot = lone.segment.arguments(word.sequence)
        read = lone.worker._loop.reader._argument_bytes

        def read_once(state: object) -> bytes | None:
            data: bytes | None = read(state)
            damage_arguments_slot(lone.segment, word.sequence)  # behind the rank's look
            return data

        lone.worker._loop.reader._argument_bytes = read_once
        slot.write(word.epoch, word.sequence, ARGUMENTS_KIND, arguments.to_bytes())
        group.write_command(word)
        poll_until(lone, group, StatusCode.PREPARED)
        assert group.arguments(word) is None
        decide(lone, word, Operation.COMMIT, StatusCode.DONE_COMMITTED)
    AbandonedCommands(lone.segment, who="a rank").look()
    eventually(lambda: lone.worker.poll() and is_over(group.view()))
    view = group.view()
    record = group.committed(view)
    assert (view.committed.held, record.hold) == (held, UNKNOWN_HOLD if held else None)
    loads = operation is Operation.UPDATE
    assert (record.version, record.load_sequence) == (
        ("2", word.sequence) if loads else (before.version, before.load_sequence)
    )
    assert group.report(0, word, StatusCode.DONE_COMMITTED) is not None
    lone.worker._loop.reader._argument_bytes = read
    if held and not asked.endswith("cleared group"):
        lone.run(lone.controller.begin_release())
    group.close()
    assert lone.update(3).serving is not asked.endswith("cleared group")


class FreezingRequests(InMemoryRequests):
    """Sets requests aside, and cannot say whether any are."""

    set_aside = abort_set_aside = None  # type: ignore[assignment] # no such methods


def test_a_scheduler_that_cannot_say_what_it_set_aside_is_asked_for_no_drain_under_a_hold(make_lone) -> None:
    runner = InMemoryRunner(SPECS)
    runner.requests = FreezingRequests()
    lone = make_lone(runner=runner)
    lone.update(1)
    lone.run(lone.controller.begin_hold(in_flight=InFlightPolicy.KEEP))
    lone.update(2)
    with pytest.raises(CommandRefusedError, match="the hold has set requests aside"):
        lone.update(3, in_flight=InFlightPolicy.DRAIN)
    lone.update(3, in_flight=InFlightPolicy.KEEP)
    lone.run(lone.controller.begin_release())
    lone.update(4, in_flight=InFlightPolicy.DRAIN)


def test_a_command_treats_requests_as_the_hold_said_and_blocks_as_it_says_itself(make_lone) -> None:
    runner = InMemoryRunner(SPECS)
    options = PlanOptions.from_runner(runner, kv_policies=frozenset({KVPolicy.DROP, KVPolicy.KEEP}))
    lone = make_lone(runner=runner, plan_options=options)
    lone.update(1)
    requests, cache = runner.requests, runner.kv_cache
    requests.submit(50)
    assert serves(lone)
    forgotten = cache.forgotten
    lone.run(lone.controller.begin_hold(in_flight=InFlightPolicy.KEEP, kv_policy=KVPolicy.DROP))
    assert (cache.forgotten, requests.set_aside(), lone.worker.kv.name) == (forgotten + 1, 1, "NORMAL")
    lone.update(2, hot=True, kv_policy=KVPolicy.KEEP)
    assert (lone.worker.version, cache.forgotten) == ("2", forgotten + 1)
    lone.update(3, hot=True, kv_policy=KVPolicy.DROP)
    assert (lone.worker.version, cache.forgotten) == ("3", forgotten + 2)
    lone.update(4, partial=True)
    assert (lone.worker.version, requests.set_aside(), requests.aborted) == ("4", 1, 0)
    lone.update(5, in_flight=InFlightPolicy.ABORT)
    assert (requests.set_aside(), requests.aborted, stands(lone)) == (0, 1, True)
    lone.run(lone.controller.begin_release())
    assert serves(lone)


def test_a_lease_that_is_renewed_before_its_end_has_the_role_is_left_alone(lone, monkeypatch) -> None:
    keeper = Recovery(lone.segment)  # beside it the rank ends no lease by itself
    role, renewed = keeper.group.role, []
    acquire = role.acquire

    def acquire_late(wait_s: float) -> LockHold:
        if not renewed:
            renewed.append(lone.controller.hold(owner="trainer", lease_s=60, on_lease="serve").outcome)
        return acquire(wait_s)

    lone.run(lone.controller.begin_hold(owner="trainer", lease_s=0.01, on_lease="serve"))
    sequence = lone.controller.status().sequence
    monkeypatch.setattr(role, "acquire", acquire_late)
    eventually(lambda: keeper.look() or renewed)
    keeper.look()
    assert renewed == [Outcome.HOLD_RENEWED]
    status = lone.controller.status()
    assert (status.sequence, status.hold is not None, stands(lone)) == (sequence, True, True)
    keeper.close()
