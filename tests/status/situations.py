"""Situations of a group of two ranks, as facts: what a segment held, without the segment."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from wsm.command import CommandArguments, FailureReport
from wsm.committed_record import CommittedRecord
from wsm.journal.entry import ACTION_STARTED, COMMAND_ISSUED, TRANSITION, JournalEntry
from wsm.states.vocabulary import After, Tag
from wsm.states.words import (
    CommandWord,
    Decider,
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
    code_name,
)
from wsm.status.facts import (
    NO_STATUS,
    ActionFacts,
    FailureFacts,
    ForeignPid,
    GroupStatus,
    RankStatus,
)

ASKED = CommandArguments("nightly", "4")
CLEAR = CommandArguments("nightly", clears=True)
LOAD = ActionFacts("load_weights", 600.0)
RESTART = ActionFacts("restart_tp_group", 60.0)


def rank(number: int, code: StatusCode, sequence: int = 7, **facts) -> RankStatus:
    status = StatusWord(facts.pop("epoch", 2), sequence, code, facts.pop("index", 0), facts.pop("ready", 0))
    step = facts.pop("step", StepWord(2, 6, StepKind.RUNNING, 40))
    return RankStatus(number, pid=100 + number, status=status, step_word=step, since_s=3.0, **facts)


def serving_rank(number: int, *, code: StatusCode = StatusCode.DONE_COMMITTED, **facts) -> RankStatus:
    return rank(number, code, weights="NORMAL", kv="NORMAL", **facts)


def record(sequence: int, version: str | None) -> CommittedRecord:
    return CommittedRecord(sequence, version, load_sequence=sequence)


def group(*ranks: RankStatus, operation: Operation = Operation.UPDATE, **facts) -> GroupStatus:
    asked = facts.pop("arguments", ASKED)
    if facts.pop("of_another_container", False):
        ranks = tuple(replace(one, pid=foreign(4 + one.rank)) for one in ranks)
        facts.setdefault("supervisor_pid", foreign(1))
    owes = asked is not None and asked.restores
    is_over = all(
        one.status is not None and one.status.sequence == 7 and one.status.code.is_terminal for one in ranks
    )
    ranks = tuple(
        replace(one, code=code_name(operation, one.status.code)) if one.status else one for one in ranks
    )
    supervisor, life = facts.pop("supervisor_pid", 800), facts.pop("supervisor_life", "alive")
    return GroupStatus(
        "policy",
        run_id="r",
        command=CommandWord(2, facts.pop("sequence", 7), operation, owes=owes),
        committed=record(facts.pop("committed", 6), facts.pop("version", "3")),
        arguments=asked,
        asked_version=facts.pop("asked_version", "4"),
        controller_pid=facts.pop("controller_pid", None if is_over else 900),
        owner_pid=800,
        owner_lives=facts.pop("owner_lives", True),
        supervisor_pid=supervisor if life in ("alive", "stopped") else None,
        supervisor_life=life,
        ranks=tuple(ranks),
        **facts,
    )


def cleared(**facts) -> GroupStatus:
    ranks = [rank(number, StatusCode.DONE_CLEARED) for number in range(2)]
    return group(*ranks, operation=Operation.CLEAR, arguments=CLEAR, **facts)


def decided_by(decider: Decider, **facts) -> GroupStatus:
    """A hot update that all have prepared, rank 1 last."""
    facts.setdefault("arguments", structs.replace(ASKED, lease_s=60.0))
    ranks = [serving_rank(number, code=StatusCode.PREPARED, staged_bytes=3 << 19) for number in range(2)]
    found = group(ranks[0], replace(ranks[1], since_s=2.0), operation=Operation.HOT_UPDATE, **facts)
    return replace(found, command=CommandWord(2, 7, Operation.HOT_UPDATE, decider))


def parked(step: int = 40) -> StepWord:
    return StepWord(2, 7, StepKind.PARKED, step)


def failure(number: int, *, refused: bool = False) -> FailureFacts:
    message = "OSError: [Errno 28] No space left on device"
    return FailureFacts(2, 7, refused, FailureReport(number, "load_weights", "OSError", message))


def entry(kind: str, number: int, at: int, **facts) -> JournalEntry:
    return JournalEntry(kind, at, 1_750_000_000_000_000_000 + at, number, 2, 7, facts)


TRANSITIONS = (
    entry(COMMAND_ISSUED, -1, 1_000_000, operation="UPDATE", request_id="nightly"),
    entry(TRANSITION, 0, 2_000_000, machine="weights", source="NORMAL", event="update", dest="UPDATING"),
    entry(ACTION_STARTED, 1, 3_000_000, name="load_weights"),
)

OLD = FailureFacts(2, 5, False, FailureReport(1, "stage_weights", "OSError", "no such file"), age_s=95.0)
LOST_PART = FailureFacts(
    2, 7, True, FailureReport(0, "begin", "part-not-restorable", "version 3 is a part, kept nowhere")
)
HELD = FailureFacts(2, 7, True, FailureReport(0, "begin", "version-held", "rank 0 holds version 3"))


def foreign(pid: int) -> ForeignPid:
    """A pid of another container."""
    found = ForeignPid(pid)
    found.namespace = 4026532211
    return found


RELEASE = CommandArguments("r", tags=frozenset(), of_admission=True, after=After.SERVE)

SITUATIONS = {
    "a hung controller of a command that all have prepared": group(
        rank(0, StatusCode.PREPARED),
        rank(1, StatusCode.PREPARED),
        controller_hung=True,
        controller_unanswered_s=37.0,
    ),
    "a hung controller beside a rank that hangs in an action": group(
        rank(0, StatusCode.PREPARED),
        rank(1, StatusCode.RUNNING, action=replace(LOAD, seconds=612.0)),
        controller_hung=True,
        controller_unanswered_s=37.0,
    ),
    "an update in place that failed, whose controller is stopped": group(
        rank(0, StatusCode.DONE_CLEARED),
        rank(1, StatusCode.DONE_CLEARED, failure=failure(1)),
        operation=Operation.ABORT,
        controller_pid=900,
        controller_stopped=True,
    ),
    "cleared, and its controller has not given the role back": cleared(controller_pid=900),
    "serving behind a release": group(
        serving_rank(0),
        serving_rank(1),
        operation=Operation.COMMIT,
        committed=7,
        arguments=RELEASE,
        asked_version=None,
    ),
    "serving behind a restore": group(
        serving_rank(0),
        serving_rank(1, failure=replace(failure(1), sequence=6)),
        operation=Operation.COMMIT,
        committed=7,
        arguments=structs.replace(ASKED, version="3", restores=True),
        asked_version="3",
    ),
    "a hold that is taken back": group(
        serving_rank(0, code=StatusCode.STOPPED_UNTOUCHED),
        serving_rank(1, code=StatusCode.FAILED, failure=failure(1)),
        operation=Operation.ABORT,
        arguments=structs.replace(RELEASE, after=After.HELD),
        asked_version=None,
    ),
    "a dead rank of a group in another container that no process keeps": group(
        serving_rank(0),
        serving_rank(1, life="dead"),
        operation=Operation.COMMIT,
        supervisor_life="never",
        of_another_container=True,
    ),
    "a hung controller in another container": group(
        rank(0, StatusCode.PREPARED),
        rank(1, StatusCode.PREPARED),
        controller_pid=ForeignPid(0),
        controller_hung=True,
        controller_unanswered_s=37.0,
        of_another_container=True,
    ),
    "a rank that hangs in an action in another container": group(
        rank(0, StatusCode.PREPARED),
        rank(1, StatusCode.RUNNING, action=replace(LOAD, seconds=612.0)),
        of_another_container=True,
    ),
    "a hot update that failed": group(
        serving_rank(0, code=StatusCode.DONE_KEPT),
        serving_rank(1, code=StatusCode.DONE_KEPT, failure=failure(1)),
        operation=Operation.HOT_ABORT,
    ),
    "an update in place that failed": group(
        rank(0, StatusCode.DONE_CLEARED),
        rank(1, StatusCode.DONE_CLEARED, failure=failure(1)),
        operation=Operation.ABORT,
    ),
    "an update in place that failed, whose group has neither caller nor keeper": replace(
        group(
            rank(0, StatusCode.DONE_CLEARED),
            rank(1, StatusCode.DONE_CLEARED, failure=failure(1)),
            operation=Operation.ABORT,
            controller_pid=None,
            supervisor_life="never",
        ),
        command=CommandWord(2, 7, Operation.ABORT, owes=True),
    ),
    "a first update that failed": group(
        rank(0, StatusCode.DONE_CLEARED),
        rank(1, StatusCode.DONE_CLEARED, failure=failure(1)),
        operation=Operation.ABORT,
        version=None,
        supervisor_life="never",
    ),
    "a restore that failed": group(
        rank(0, StatusCode.DONE_CLEARED),
        rank(1, StatusCode.DONE_CLEARED, failure=failure(1)),
        operation=Operation.ABORT,
        arguments=structs.replace(ASKED, version="3", restores=True),
        asked_version="3",
    ),
    "a restore that was refused, since what served is a part": group(
        rank(0, StatusCode.DONE_CLEARED, failure=LOST_PART),
        rank(1, StatusCode.DONE_CLEARED),
        operation=Operation.ABORT,
        arguments=structs.replace(ASKED, version="3", restores=True),
        asked_version="3",
        served_bases=("1", "2"),
    ),
    "an update to the version that served, which failed": group(
        rank(0, StatusCode.DONE_CLEARED),
        rank(1, StatusCode.DONE_CLEARED, failure=failure(1)),
        operation=Operation.ABORT,
        arguments=structs.replace(ASKED, version="3"),
        asked_version="3",
    ),
    "a dead rank of a group that served a part": group(
        serving_rank(0),
        serving_rank(1, life="dead"),
        operation=Operation.COMMIT,
        supervisor_life="never",
        served_bases=("1", "2"),
    ),
    "nothing to do": group(
        serving_rank(0, code=StatusCode.DONE_KEPT, failure=HELD),
        serving_rank(1, code=StatusCode.DONE_KEPT, failure=OLD),
        operation=Operation.ABORT,
        arguments=CommandArguments("nightly"),
        asked_version=None,
    ),
    "staging": group(
        serving_rank(0, code=StatusCode.PREPARED),
        serving_rank(1, code=StatusCode.DRAINING, action=replace(LOAD, name="stage_weights", seconds=2.0)),
        operation=Operation.HOT_UPDATE,
    ),
    "a broken step without a supervisor": group(
        serving_rank(0, step=StepWord(2, 7, StepKind.BROKEN, 41)),
        serving_rank(1),
        operation=Operation.COMMIT,
        supervisor_life="never",
    ),
    "a stopped rank without a supervisor": group(
        serving_rank(0), serving_rank(1, life="stopped"), operation=Operation.COMMIT, supervisor_life="never"
    ),
    "a dead rank without a supervisor": group(
        serving_rank(0), serving_rank(1, life="dead"), operation=Operation.COMMIT, supervisor_life="never"
    ),
    "a dead rank and a stopped supervisor": group(
        serving_rank(0), serving_rank(1, life="dead"), operation=Operation.COMMIT, supervisor_life="stopped"
    ),
    "two that have not answered, one stopped": group(
        rank(0, StatusCode.DONE_COMMITTED, 6), rank(1, StatusCode.DONE_COMMITTED, 6, life="stopped")
    ),
    "two that have not answered, one of them not in the step of the other": group(
        rank(0, StatusCode.DONE_COMMITTED, 6, step=StepWord(2, 6, StepKind.RUNNING, 41)),
        rank(1, StatusCode.DONE_COMMITTED, 6),
    ),
    "a rank that never entered a collective action": group(
        rank(0, StatusCode.RUNNING, ready=1, action=replace(RESTART, collective=True, seconds=90.0)),
        rank(1, StatusCode.RUNNING, ready=1, action=replace(RESTART, collective=True)),
    ),
    "a rank that has failed and is undecided": group(
        rank(0, StatusCode.PREPARED), rank(1, StatusCode.FAILED, failure=failure(1))
    ),
    "one that holds the others in a step": group(
        rank(0, StatusCode.DONE_COMMITTED, 6, step=StepWord(2, 6, StepKind.RUNNING, 41)),
        rank(1, StatusCode.PARKING, step=parked(40)),
        rank(2, StatusCode.PARKING, step=parked(41)),
    ),
    "serving": group(serving_rank(0), serving_rank(1), operation=Operation.COMMIT, committed=7),
    "cleared": cleared(),
    "cleared by an engine whose loop does not poll": cleared(obeys_engine_alone=True),
    "without its KV cache": group(
        rank(0, StatusCode.DONE_CLEARED, weights="NORMAL"),
        rank(1, StatusCode.DONE_CLEARED, weights="NORMAL"),
        operation=Operation.CLEAR,
        arguments=structs.replace(CLEAR, tags=frozenset({Tag.KV_CACHE})),
    ),
    "without its weights": group(
        rank(0, StatusCode.DONE_CLEARED, kv="NORMAL"),
        rank(1, StatusCode.DONE_CLEARED, kv="NORMAL"),
        operation=Operation.CLEAR,
        arguments=structs.replace(CLEAR, tags=frozenset({Tag.WEIGHTS})),
        journal=(
            entry(
                COMMAND_ISSUED,
                -1,
                1_000_000,
                operation="CLEAR",
                request_id="99cd7894c96e4d05a07d43355f0d174b",
            ),
        ),
    ),
    "a rank late in its drain": group(
        rank(0, StatusCode.PARKING, step=parked()),
        rank(1, StatusCode.DRAINING),
        operation=Operation.CLEAR,
        arguments=CLEAR,
    ),
    "a rank that has not answered": group(
        rank(0, StatusCode.PARKING, step=parked()), rank(1, StatusCode.DONE_COMMITTED, 6)
    ),
    "a rank that hangs in an action": group(
        rank(0, StatusCode.PREPARED, weights="PREPARED"),
        rank(1, StatusCode.RUNNING, weights="UPDATING", action=replace(LOAD, seconds=612.0)),
    ),
    "a stopped rank": group(
        rank(0, StatusCode.PREPARED, weights="PREPARED"),
        rank(1, StatusCode.RUNNING, weights="UPDATING", life="stopped", action=replace(LOAD, seconds=12.0)),
    ),
    "a stopped rank that has not seen an abort": group(
        rank(0, StatusCode.STOPPED_UNTOUCHED, weights="NORMAL"),
        serving_rank(1, sequence=6, life="stopped"),
        operation=Operation.ABORT,
        controller_pid=None,
    ),
    "a stopped rank that has not seen a commit": group(
        serving_rank(0),
        rank(1, StatusCode.PREPARED, weights="PREPARED", life="stopped"),
        operation=Operation.COMMIT,
        controller_pid=None,
    ),
    "a vote that is missing": group(
        rank(0, StatusCode.RUNNING, ready=1, action=RESTART),
        rank(1, StatusCode.ACCEPTED),
    ),
    "a rank that failed": group(
        rank(0, StatusCode.STOPPED_UNTOUCHED),
        rank(1, StatusCode.FAILED, failure=failure(1)),
        operation=Operation.ABORT,
    ),
    "a refusal": group(
        rank(0, StatusCode.PARKING, step=parked()),
        rank(1, StatusCode.REFUSED, step=parked(), failure=failure(1, refused=True)),
    ),
    "faulted": group(
        rank(0, StatusCode.DONE_CLEARED),
        rank(1, StatusCode.DONE_FAULTED, weights="FAULTED", failure=failure(1)),
        operation=Operation.ABORT,
    ),
    "a dead rank": group(
        rank(0, StatusCode.STOPPED_UNTOUCHED),
        rank(1, StatusCode.RUNNING, life="dead", action=replace(LOAD, seconds=2.0)),
        operation=Operation.ABORT,
        journal=TRANSITIONS,
    ),
    "everybody dead": group(
        serving_rank(0, life="dead"),
        serving_rank(1, life="dead"),
        owner_lives=False,
        supervisor_life="dead",
        controller_pid=None,
    ),
    "a dead controller with an undecided command": group(
        rank(0, StatusCode.PREPARED), rank(1, StatusCode.PREPARED), controller_pid=None
    ),
    "a stopped controller of a command that all have prepared": group(
        rank(0, StatusCode.PREPARED), rank(1, StatusCode.PREPARED), controller_stopped=True
    ),
    "a stopped supervisor that has the controller role": group(
        rank(0, StatusCode.PREPARED),
        rank(1, StatusCode.PREPARED),
        controller_pid=800,
        controller_stopped=True,
        supervisor_life="stopped",
    ),
    "prepared by a process that decides": decided_by(Decider.CALLER),
    "prepared by a process that decides, and that is stopped": decided_by(
        Decider.CALLER, controller_stopped=True
    ),
    "prepared under a lease": decided_by(
        Decider.CALLER, arguments=structs.replace(ASKED, lease_s=60.0, leased=True), controller_pid=None
    ),
    "a commit whose version nobody wrote": group(
        serving_rank(0), serving_rank(1), operation=Operation.COMMIT, controller_pid=None
    ),
    "a broken step": group(
        serving_rank(0, step=StepWord(2, 7, StepKind.BROKEN, 41)), serving_rank(1), operation=Operation.COMMIT
    ),
    "a stale epoch": group(
        replace(serving_rank(0), status=StatusWord(1, 7, StatusCode.DONE_COMMITTED)),
        rank(1, StatusCode.ATTACHED, 0),
        operation=Operation.NONE,
    ),
    "a survivor whose step broke before the epoch began": group(
        serving_rank(0, epoch=1, step=StepWord(1, 6, StepKind.BROKEN, 41)),
        rank(1, StatusCode.ATTACHED, 0, step=StepWord(0, 0, StepKind.RUNNING, 0)),
        operation=Operation.NONE,
    ),
    "serving, and a step broke in the epoch before": group(
        serving_rank(0, step=StepWord(1, 6, StepKind.BROKEN, 41)),
        serving_rank(1),
        operation=Operation.COMMIT,
        committed=7,
    ),
    "nobody came": group(
        RankStatus(0, life="never"),
        RankStatus(1, life="never"),
        operation=Operation.NONE,
        logs="/dev/shm/wsm.policy.run",  # noqa: S108 - a path that is told, and not used
    ),
    "a rank that never came": group(
        rank(0, StatusCode.ATTACHED, 0), RankStatus(1, life="never"), operation=Operation.NONE
    ),
    "ranks that differ": group(serving_rank(0), rank(1, StatusCode.DONE_CLEARED), operation=Operation.ABORT),
    "no segment": GroupStatus("policy", problem="there is no segment at /dev/shm/wsm.policy"),
    "another layout": GroupStatus("policy", problem="layout version 9 of /dev/shm/wsm.policy is not 2"),
    "corrupted words": group(
        rank(0, StatusCode.DONE_COMMITTED),
        replace(rank(1, StatusCode.NONE), status=NO_STATUS),
        damaged=("the status word of rank 1 is 0xffffffffffffffff, which it cannot be",),
    ),
}
