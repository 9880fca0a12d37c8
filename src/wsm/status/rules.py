"""The one thing that keeps a group from serving, why it is so, and what to do. Pure; the first rule counts.

``wsm status``, ``wsm explain`` and the errors of controllers say what these rules find. An advice names the
commands that it means, with their version; the tests carry them out.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wsm.command import PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN
from wsm.journal.entry import DECISION
from wsm.labels import is_unnamed
from wsm.printable import size_text
from wsm.states.engine_words import Given
from wsm.states.holding import ANY_OWNER
from wsm.states.vocabulary import ALL_TAGS, OnLease, Tag, sentence_of
from wsm.states.words import FEW_SEQUENCES, Decider, Operation, StatusCode
from wsm.status.culprits import first_failure, in_sentence, late_ranks, overdue
from wsm.status.facts import (
    ALIVE,
    DEAD,
    NEVER,
    STOPPED,
    FailureFacts,
    GroupStatus,
    RankStatus,
    kill,
    named,
    process,
    who,
    whose_processes,
)


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Parameters
    ----------
    marked : str
        A sentence; each shell command in it is marked by :func:`_run`.
    """

    marked: str

    @property
    def text(self) -> str:
        """The sentence, with its commands in quotes."""
        return self.marked.replace(_MARK, "'")

    @property
    def commands(self) -> tuple[str, ...]:
        """The shell commands in it, in their order."""
        return tuple(self.marked.split(_MARK)[1::2])


_MARK = "\0"  # no argument of a command has it


def _run(command: str) -> str:
    return f"{_MARK}{command}{_MARK}"


@dataclass(frozen=True)
class Finding:
    """The result of a rule.

    Parameters
    ----------
    code : str
        The name of the result, which the runbook has an entry for.
    state : str
        A verb phrase about the group: what it does or holds; without times.
    because : str
        The cause; empty where there is nothing to say.
    advice : tuple of Advice
        The next things to do.
    ranks : tuple of int
        The ranks that it is about.
    before : str or None
        The version that served before, where none does now.
    action : str
        The action that these ranks keep from its end, where its deadline is over.
    """

    code: str
    state: str
    because: str = ""
    advice: tuple[Advice, ...] = ()
    ranks: tuple[int, ...] = ()
    before: str | None = None
    action: str = ""

    @property
    def sentence(self) -> str:
        """State, cause, and what served before, as one clause."""
        because = f": {self.because}" if self.because else ""
        return f"{self.state}{because}{self._served}"

    @property
    def short(self) -> str:
        """The same without the cause, for errors, which tell that themselves."""
        return f"{self.state}{self._served}"

    @property
    def _served(self) -> str:
        return "" if self.before is None else f"; version {self.before} served before"


#: Commands that a rank does not see if its loop looks at its engine's words alone.
_REFUSED_BY_LOOPS = ("wsm clear", "wsm update", "wsm hold", "wsm release")

#: Findings that no command of a controller mends.
_ABOUT_NO_ROLE = ("unreadable", "damaged", "starting", "dead", "uncommitted")

#: Findings behind which it is said what served before.
_NOT_SERVING = (
    *("dead", "rank-lost", "rank-stopped", "joining", "step-broken"),
    *("faulted", "without-weights", "cleared", "mixed"),
)

_ASK_THE_ENGINE = Advice(
    "Its ranks look at their engine's words alone: ask the engine for it. A command of another process is "
    "refused until manager.poll(model_runner) stands at the top of the engine's loop."
)


def find(group: GroupStatus) -> Finding:
    """Return the most important thing about a group."""
    found = next(filter(None, (rule(group) for rule in _RULES)), Finding("unknown", "does not serve"))
    commands = " ".join(one.marked for one in found.advice)
    code, because, first, last = found.code, found.because, list[Advice](), list[Advice]()
    role = f"{process(group.controller_pid)} has the controller role"
    if group.controller_stopped and group.is_over and code not in _ABOUT_NO_ROLE:
        code = code if group.serving else "controller-stopped"
        because = "; ".join(filter(None, (because, f"{role}, and is stopped")))
        first = [_let_go_on(group)]
    elif group.controller_pid is not None and group.is_over and f"{_MARK}wsm " in commands:
        told = f"{role} still".capitalize()
        first = [Advice(f"{told}, and a command of another is refused until it ends: wait (--wait 30).")]
    if group.obeys_engine_alone and any(f"{_MARK}{each}" in commands for each in _REFUSED_BY_LOOPS):
        last.append(_ASK_THE_ENGINE)
    if group.command.commands_left < FEW_SEQUENCES:
        ends = f"{group.command.commands_left} more commands can be given to this group. Before that end all"
        last.append(Advice(f"{ends} of its processes and start it again: it counts from 0 then."))
    before = group.version_before if found.code in _NOT_SERVING else found.before
    advice = (*first, *found.advice, *last)
    return replace(found, code=code, because=because, before=before, advice=advice)


# -- the rules, in the order of weight -----------------------------------------------------------


def _unreadable(group: GroupStatus) -> Finding | None:
    return Finding("unreadable", f"cannot be read: {group.problem}") if group.problem else None


def _damaged(group: GroupStatus) -> Finding | None:
    if not group.damaged:
        return None
    return Finding(
        "damaged",
        f"has words that no process of it can have written: {'; '.join(group.damaged)}",
        advice=(
            Advice("End all processes of the group, keep the segment and the journals, and start it again."),
            Advice("A process outside of the group has written into its segment, or its memory is faulty."),
        ),
    )


def _starting(group: GroupStatus) -> Finding | None:
    absent = _those(group, lambda rank: rank.life == NEVER)
    if not absent or _those(group, lambda rank: rank.life == DEAD):
        return None
    where = f" (in {group.logs})" if group.logs else ""
    advice = f"Start {named(absent)}; if it was started, its log{where} says what it waits for."
    waits = f"{named(absent)} {_has(absent)} not attached yet"
    if len(absent) == len(group.ranks):
        advice, waits = "Start the workers.", "no rank has attached yet"
    if group.starter_pid is not None:
        starts = f"P{process(group.starter_pid)[1:]} starts the ranks"
        advice = f"{starts}: wait; their logs{where} say what they wait for."
    return Finding("starting", f"is starting: {waits}", "", (Advice(advice),), absent)


def _dead(group: GroupStatus) -> Finding | None:
    dead = _those(group, lambda rank: rank.life == DEAD)
    if not dead:
        return None
    advice = _replacement(group, dead)
    if len(dead) == len(group.ranks):
        return Finding("dead", "is dead: none of its processes lives", "", advice, dead)
    gone = f"{whose_processes(dead)} {'is' if len(dead) == 1 else 'are'} gone"
    return Finding("rank-lost", f"has lost {named(dead)}, and needs every rank", gone, advice, dead)


def _stopped(group: GroupStatus) -> Finding | None:
    """Name the stopped ranks, unless an action is past its deadline that none of them keeps from its end."""
    late = overdue(group)
    return None if late and not late[0].stopped else _stopped_ranks(group)


def _stopped_ranks(group: GroupStatus) -> Finding | None:
    stopped = _those(group, lambda rank: rank.life == STOPPED)
    if not stopped:
        return None
    pids = " ".join(str(group.ranks[rank].pid) for rank in stopped)
    end, ends = "", "No process replaces it: if it is ended, the whole group has to be started again."
    if group.supervisor_life == ALIVE:
        end = f", or end it ({_run(f'kill -9 {pids}')})"
        ends = f"The supervisor ({process(group.supervisor_pid)}) replaces it then."
    advice = Advice(f"Let it go on ({_run(f'kill -CONT {pids}')}){end}. {ends}")
    because = ""
    if not group.is_over:
        operation, because = group.command.operation, f"the {group.asked} is under way"
        if operation.is_decision:
            so_far = "aborted, and not taken back yet" if operation.is_abort else "decided, and not over"
            because = f"the {group.asked} is {so_far}"
    state = f"waits for {named(stopped)}, whose process is stopped"
    return Finding("rank-stopped", state, because, (advice,), stopped)


def _joining(group: GroupStatus) -> Finding | None:
    command = group.command
    late = _those(group, lambda rank: rank.epoch < command.epoch)
    if not late:
        return None
    if command.epoch == 1:
        state = f"is starting: {named(late)} {_has(late)} not joined yet"
        return Finding("starting", state, "", (Advice("Wait; its log says what it is doing."),), late)
    then = "A living rank releases what it held before it joins; its last entries say what it is in."
    state = f"waits for {named(late)} to join epoch {command.epoch}"
    return Finding("joining", state, "", (Advice(then),), late)


def _broken(group: GroupStatus) -> Finding | None:
    # A step that broke in another epoch is answered by this one.
    broken = _those(group, lambda rank: rank.is_broken and rank.step_word.epoch == group.epoch)
    if not broken:
        return None
    look = Advice("The log of that rank names what its step raised.")
    state = f"cannot step: a step raised on {named(broken)}"
    return Finding("step-broken", state, "", (*_replacement(group, broken), look), broken)


def _under_way(group: GroupStatus) -> Finding | None:
    command = group.command
    open_ranks = [rank for rank in group.ranks if not group.is_done(rank)]
    if command.operation is Operation.NONE or not open_ranks:
        return None
    operation, what = command.operation, group.asked
    waited = late_ranks(group)
    failure = first_failure(group.failures)
    why = "" if failure is None else f", which {_how_it_failed(failure, group)}"
    meanwhile = f"serves version {group.version}, and " if group.serving else ""
    by = "" if group.controller_pid is None else f" of {process(group.controller_pid)}"
    does = f"carries out the {what}{by}"
    if operation.is_commit:
        does = f"ends the {what}{by}, which is decided"
    elif operation.is_abort:
        does = f"takes back the {what}{by}{why}"
    late = _overdue(group, f"{meanwhile}{does}")
    if late is not None:
        return late
    undecided = _decision_open(group, f"{meanwhile}has prepared the {what}")
    if group.halted and not operation.is_decision:
        ends = _controller_halted(group, f"{meanwhile}{does}")
        undecided = ends if undecided is None else replace(undecided, advice=ends.advice)
    if undecided is not None:
        return undecided
    if group.role_known and group.controller_pid is None and not operation.is_decision:
        state = f"{meanwhile}is left with the {what} undecided: its controller is gone"
        return Finding("controller-gone", state, "", (_decided_soon(group),), tuple(waited))
    names, state = named(tuple(waited)), f"{meanwhile}{does}, and waits for {in_sentence(waited)}"
    if not operation.is_decision and any(group.has_failed(rank) for rank in open_ranks):
        names = "the controller"
        state = f"{meanwhile}{does}{why}, and waits for its controller to decide"
    advice = Advice(f"Wait; if it does not end, see the log of {names}.")
    return Finding("under-way", state, "", (advice,), tuple(waited))


def _overdue(group: GroupStatus, does: str) -> Finding | None:
    """Name the rank that keeps an action from its end which is past its deadline."""
    late = overdue(group)
    if not late:
        return None
    worst, action = group.ranks[late[0].rank], late[0].action
    what = f"is past the deadline of {action}"
    if late[0].step is not None:
        what = f"has not entered step {late[0].step}, in which others stand past the deadline of {action}"
    elif not late[0].entered:
        what = f"has not entered {action}, whose deadline is over"
    advice, because = [_look_into(worst, group)], ""
    if group.halted and not group.command.operation.is_decision:
        because = f"{process(group.controller_pid)}, which has the controller role, {group.halted}"
        advice.append(_let_go_on(group))
    stopped = _stopped_ranks(group)
    advice += () if stopped is None else stopped.advice
    state = f"{does}, and waits for {who(worst.number)}, which {what}"
    return Finding("action-overdue", state, because, tuple(advice), (worst.number,), action=action)


def _uncommitted(group: GroupStatus) -> Finding | None:
    if not group.is_unwritten:
        return None
    does = f"has decided the {group.asked}, and its version is not written yet"
    if group.halted:
        return _controller_halted(group, does)
    return Finding("uncommitted", does, advice=(_decided_soon(group, "writes"),))


def _faulted(group: GroupStatus) -> Finding | None:
    faulted = _those(group, lambda rank: rank.weights == "FAULTED")
    if not faulted:
        return None
    clear = _run(f"wsm clear {group.name}")
    tries = f"{clear} tries it again on all ranks."
    if group.supervisor_life == ALIVE:
        tries = (
            f"The supervisor ({process(group.supervisor_pid)}) clears the group again by itself, a few "
            f"times, and then replaces the rank; wait, or do it by hand: {clear}."
        )
    advice = Advice(f"{tries}{_then_update(group)}")
    return Finding(
        "faulted", f"could not release its memory on {named(faulted)}", _failed(group), (advice,), faulted
    )


def _record_lost(group: GroupStatus) -> Finding | None:
    advice = Advice(f"'wsm update {group.name} --version VERSION --force' writes its record anew.")
    told = "does not know any more which version it has committed"
    return Finding("record-lost", told, group.record_lost, advice=(advice,)) if group.record_lost else None


def _awaited(group: GroupStatus) -> Finding | None:
    if group.awaited is None:
        return None
    ranks, where, seen = group.awaited
    advice = tuple(_look_into(rank, group) for rank in group.ranks if rank.number in ranks)
    return Finding("rank-missing", f"waits for {named(ranks)} in {where}", seen, advice, ranks)


def _wish_open(group: GroupStatus) -> Finding | None:
    """Say that FastDeploy's word asks still for an update that failed, and left the old weights."""
    command, failure = group.command, first_failure(group.failures)
    asked_by_engine = group.request_id == Given.UPDATE.request_id
    if not (command.operation.is_abort and asked_by_engine and group.serving):
        return None
    version = group.version
    advice = [Advice("Mend what the failure names: the load is tried again by itself, within a minute.")]
    if version is not None and not is_unnamed(version):
        update = _run(f"wsm update {group.name} --version {version} --force")
        advice.append(Advice(f"Or give it up: {update} ends the wish, and version {version} serves."))
    told = f"has version {version}, and the update that its engine's word asks for fails"
    because = _failed(group) if failure is None else f"{_failed(group)}: {failure.report.message}"
    return Finding("wish-open", told, because, advice=tuple(advice))


def _serving(group: GroupStatus) -> Finding | None:
    if not group.serving:
        return None
    version = group.version
    unproven = ", unverified: its source names no version" if version and is_unnamed(version) else ""
    meant = group.committed.content_digest
    content = "" if meant is None else f", content {meant}"
    because = ""
    if group.command.operation.is_abort:
        because = f"{_failed(group)}, and changed nothing"
        if group.found_nothing_to_do:
            because = "the last update named no version, and the newest one is served already"
    elif group.arguments is not None and group.arguments.restores:
        # The command before is the one that failed, if it was not a loss that ended its epoch.
        before = (one for one in group.earlier if (one.epoch, one.sequence + 1) == group.command[:2])
        failure = first_failure(before)
        if failure is not None:
            because = f"it was loaded again behind an update that {_how_it_failed(failure, group)}"
    return Finding("serving", f"serves version {version}{content}{unproven}", because)


def _decision_open(group: GroupStatus, state: str) -> Finding | None:
    """Say whose decision a command waits for that its controller does not decide; None: it need not."""
    command, arguments = group.command, group.arguments
    if command.operation.is_decision or command.decider is Decider.CONTROLLER:
        return None
    if any(group.answer(rank) is not StatusCode.PREPARED for rank in group.ranks):
        return None
    lease_s = 0.0 if arguments is None else arguments.lease_s or 0.0
    ends = f"Without a decision it is aborted {lease_s:g} s after all ranks have prepared it."
    lease = "" if group.decision_left_s is None else _lease_in_words(group.decision_left_s, "its lease")
    because = "; ".join(filter(None, (_staged_in_words(group), lease)))
    if group.controller_pid is not None:
        pid = process(group.controller_pid)
        then = Advice(f"Wait until {pid} commits or aborts it, or end that process, which aborts it. {ends}")
        stands = f", which {group.halted}" if group.halted else ""
        return Finding(
            "decision-held", f"{state}, and waits for the decision of {pid}{stands}", because, (then,)
        )
    if arguments is None or not arguments.leased:
        return None
    commit = _run(f"wsm commit {group.name} --request-id {shlex.quote(arguments.request_id)}")
    then = Advice(f"{commit} serves it, {_run(f'wsm abort {group.name}')} takes it back. {ends}")
    return Finding("decision-held", f"{state}, and waits for its caller's decision", because, (then,))


def _staged_in_words(group: GroupStatus) -> str:
    """Say how much the ranks keep prepared until the decision; empty: nothing is known of it."""
    amounts = sorted(rank.staged_bytes for rank in group.ranks if not rank.helper)
    if not any(amounts):
        return ""
    least, most = size_text(amounts[0]), size_text(amounts[-1])
    return f"{least if least == most else f'{least} to {most}'} are staged on each rank"


def _lease_in_words(left_s: float, whose: str) -> str:
    return f"its lease lasts {left_s:.0f} s more" if left_s > 0 else f"{whose} ran out {-left_s:.0f} s ago"


def _held(group: GroupStatus) -> Finding | None:
    """Say who holds the group, unless something else is to be said of it first."""
    resident = _resident(group)
    if group.hold is None or any(weights == "FAULTED" for weights, _ in resident) or len(resident) != 1:
        return None
    owner = group.hold.owner or ANY_OWNER
    by = "a caller without a name" if owner == ANY_OWNER else owner
    lease, left_s, advice = "", group.lease_left_s, _load_advice(group)
    if left_s is not None:
        stays = group.hold.on_lease is OnLease.STAY
        then = "" if left_s > 0 else f"; {'it stays held' if stays else 'what is whole serves again'}"
        lease = f"{_lease_in_words(left_s, f'the lease of {by}')}{then}"
    if resident != {("NORMAL", "NORMAL")}:
        state = f"is held by {by}, and lacks what a step needs"
        return Finding("held", state, lease, advice, before=group.version_before)
    release = f"wsm release {group.name}"
    then = f"{_run(f'{release} --owner {shlex.quote(owner)}')} lets it serve again."
    if group.closed is not None:
        lease = f"it is closed, since {group.closed}"
        forced = _run(f"{release} --force")
        then = f"Update it to other weights, which opens it; or {forced} lets it serve these."
    state = f"has version {group.version}, and is held by {by}"
    return Finding("held", state, lease, (Advice(then),))


def _resident(group: GroupStatus) -> set[tuple[str, str]]:
    """Return in which states weights and KV cache are on the ranks."""
    return {(rank.weights, rank.kv) for rank in group.ranks if not rank.helper}


def _lacking(group: GroupStatus) -> Finding | None:
    """Say what an open group lacks; the rules before this one have named each command that is under way."""
    resident, has = _resident(group), f"holds version {group.version}"
    if resident == {("NORMAL", "CLEARED")}:
        if group.obeys_engine_alone:
            built = "its engine has built KV cache and graphs itself"
            return Finding(
                "engine-has-kv-cache", has, f"{built}, which count from its first clear or update on"
            )
        update = _run(f"wsm update {group.name} --tags kv_cache")
        advice = Advice(f"{update} rebuilds the KV cache, and then it serves.")
        state = f"{has}, and does not serve without a KV cache"
        return Finding("without-kv-cache", state, _ended(group), (advice,))
    if all(weights == "CLEARED" for weights, _ in resident):
        half = resident == {("CLEARED", "NORMAL")}
        state = "holds its KV cache, and does not serve without weights" if half else "holds no weights"
        return Finding("without-weights" if half else "cleared", state, _ended(group), _load_advice(group))
    states = ", ".join(f"{who(rank.number)} {rank.weights}, KV cache {rank.kv}" for rank in group.ranks)
    advice = Advice(f"{_run(f'wsm clear {group.name}')} brings the ranks together.{_then_update(group)}")
    return Finding("mixed", "holds different things on its ranks", states, (advice,))


_RULES: Sequence[Callable[[GroupStatus], Finding | None]] = (
    _unreadable,
    _damaged,
    _starting,
    _dead,
    _stopped,
    _broken,
    _joining,
    _under_way,
    _uncommitted,
    _record_lost,
    _awaited,
    _wish_open,
    _serving,
    _held,
    _faulted,
    _lacking,
)


def _ended(group: GroupStatus) -> str:
    """Say how the last command left the group as it is."""
    command, arguments = group.command, group.arguments
    if command.operation is Operation.NONE:
        if command.epoch == 1:
            return "nothing was loaded yet"
        owed = group.version
        lost = f"epoch {command.epoch} began when a rank was lost"
        return lost if owed is None else f"{lost}, and version {owed} is not loaded again yet"
    if command.operation.is_abort:
        released = ""
        if arguments is None or not arguments.clears:
            resident = _resident(group)
            kept = {Tag.WEIGHTS} if {weights for weights, _ in resident} == {"NORMAL"} else set()
            kept |= {Tag.KV_CACHE} if {kv for _, kv in resident} == {"NORMAL"} else set()
            released = f", and every rank released {sentence_of(ALL_TAGS - kept)}"
        return f"{_failed(group)}{released}{_debt(group)}"
    if command.operation is Operation.CLEAR:
        by = f" ({group.request_id})" if group.request_id else ""
        them = "it" if arguments is not None and arguments.tags == {Tag.KV_CACHE} else "them"
        return f"the last command, a {group.asked}{by}, released {them}"
    return f"the last command was the {group.asked}"


def _debt(group: GroupStatus) -> str:
    """Say of a group that is owed its version which process restores it, or that none does."""
    if not _is_owed(group) or _is_lost(group):
        return ""
    if group.controller_pid is not None:
        return f"; {process(group.controller_pid)} restores it"
    if group.supervisor_life == ALIVE:
        return f"; its supervisor ({process(group.supervisor_pid)}) tries a few times to restore it"
    return "; no process restores it"


def _failed(group: GroupStatus) -> str:
    """Say that the last command failed, on which rank and in what."""
    failure = first_failure(group.failures)
    if failure is None:
        told = [one.facts for one in group.journal if one.kind == DECISION and group.is_current(one)]
        because = f", since {told[-1]['because']}" if told and "because" in told[-1] else ""
        return f"the {group.asked} was aborted{because}"
    why = ", since its source was overwritten" if failure.report.error == SOURCE_OVERWRITTEN else ""
    return f"the {group.asked} {_how_it_failed(failure, group)}{why}"


def _how_it_failed(failure: FailureFacts, group: GroupStatus) -> str:
    rank = who(group.ranks[failure.report.rank].number)
    return f"was refused by {rank}" if failure.refused else f"failed on {rank} in {failure.report.action}"


def _those(group: GroupStatus, holds: Callable[[RankStatus], bool]) -> tuple[int, ...]:
    """Return the numbers of the ranks of which something holds."""
    return tuple(rank.number for rank in group.ranks if holds(rank))


def _has(ranks: Sequence[int]) -> str:
    return "have" if len(ranks) > 1 else "has"


# -- what to do ------------------------------------------------------------------------------------


def _load_advice(group: GroupStatus) -> tuple[Advice, ...]:
    """Advise how to bring weights: never by a version that is not known to be good, if one is."""
    if not _is_owed(group) or group.supervisor_life != ALIVE or _is_lost(group):
        return (_load_by_hand(group),)
    keeps = f"The supervisor ({process(group.supervisor_pid)}) tries to load it by itself, a few times: wait"
    return (Advice(f"{keeps}. If it does not serve soon, load it by hand."), _load_by_hand(group))


def _load_by_hand(group: GroupStatus) -> Advice:
    update, whole = _update(group), _whole_version(group)
    if update:
        does = "makes it serve that version again"
        if is_unnamed(group.version_before or ""):
            does = "loads what its source holds now, under a label of its own"
        elif group.failures and group.asked_version == group.version_before:
            does = f"tries that version again; if it fails again, {whole}"
        return Advice(f"{update} {does}.")
    if group.served_bases:
        bases = f"version{'s' * (len(group.served_bases) > 1)} {', '.join(group.served_bases)}"
        part = f"Version {group.version_before} is a part, put on {bases}"
        return Advice(f"{part}, and cannot be loaded alone: {whole}.")
    newest = f"{_run(f'wsm update {group.name}')} loads the newest version that is published"
    if group.failures:
        return Advice(f"Mend what the failure names, if it is broken; then {newest}, --version V another.")
    return Advice(f"{newest}.")


def _update(group: GroupStatus) -> str:
    """Return the command that loads what served before; empty where that is a part, or is not known.

    A load that named no version takes what its source holds then.
    """
    version = group.version_before
    if version is None or group.served_bases:
        return ""
    named = "" if is_unnamed(version) else f" --version {version}"
    return _run(f"wsm update {group.name}{named}{_loaded_as(group, version)}")


def _loaded_as(group: GroupStatus, version: str) -> str:
    """Return the options with which the committed version was loaded."""
    said = group.committed.load if version == group.version else {}
    options = f" --transfer-mode {said['transfer_mode']}" if "transfer_mode" in said else ""
    if "verify_checksum" in said:
        options += " --verify-checksum" if said["verify_checksum"] else " --no-verify-checksum"
    if "rsync_config" in said:
        options += f" --rsync-config {shlex.quote(json.dumps(said['rsync_config']))}"
    return options


def _then_update(group: GroupStatus) -> str:
    if group.served_bases:
        return f" After that {_whole_version(group)}: what served is a part."
    update = _update(group)
    return f" After that {update} makes it serve again." if update else ""


def _whole_version(group: GroupStatus) -> str:
    return f"publish a whole version V, and load it by its label: 'wsm update {group.name} --version V'"


def _is_lost(group: GroupStatus) -> bool:
    """Whether a restore failed since what served is nowhere: a part's bases, an overwritten source."""
    lost = (PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN)
    return any(failure.report.error in lost for failure in group.failures)


def _is_owed(group: GroupStatus) -> bool:
    """Whether the group is owed its committed version: after a loss, or after an update that failed."""
    command = group.command
    if group.version is None:
        return False
    return command.operation is Operation.NONE or command.owes


def _replacement(group: GroupStatus, ranks: Sequence[int]) -> tuple[Advice, ...]:
    """Say that the supervisor replaces ranks; or how to start the whole group again, where it has none."""
    supervisor = f"The supervisor ({process(group.supervisor_pid)}) replaces {named(ranks)}"
    if group.supervisor_life == ALIVE:
        return (Advice(f"{supervisor}: wait."),)
    if group.supervisor_life == STOPPED:
        return (
            Advice(f"{supervisor} once it goes on, and is stopped: {_kill('-CONT', group.supervisor_pid)}."),
        )
    left = [rank.pid for rank in group.ranks if rank.life in (ALIVE, STOPPED) and rank.pid]
    ends = "Start"
    if left:
        there = _kill("-9", *left) or f"there: {', '.join(map(process, left))}"
        ends = f"End what is left of it ({there}), and start"
    return (Advice(f"No process replaces its ranks. {ends} the whole group again.{_then_update(group)}"),)


def _kill(option: str, *pids: int | None) -> str:
    return "".join(map(_run, kill(option, *pids)))


def _look_into(rank: RankStatus, group: GroupStatus) -> Advice:
    then = "the whole group has to be started again then"
    if group.supervisor_life == ALIVE:
        then = f"the supervisor ({process(group.supervisor_pid)}) replaces it then"
    return _look_and_end(rank.pid, then)


def _look_and_end(pid: int | None, then: str) -> Advice:
    end = _kill("-9", pid)
    if not end:
        return Advice(f"See there what {process(pid)} does; if it does nothing, end it there: {then}.")
    look = f"See what it does ('py-spy dump --pid {pid}')"
    return Advice(f"{look}; if it does nothing, end it ({end}): {then}.")


def _let_go_on(group: GroupStatus) -> Advice:
    """Advise what to do about a process that has the controller role and does not go on."""
    pid = group.controller_pid
    go_on = f"Let that process go on ({_kill('-CONT', pid)})"
    # Ranks ask the kernel to end them with the process that started them.
    if pid in (group.supervisor_pid, group.starter_pid):
        first = f"{go_on}." if group.controller_stopped else "Look at its log."
        return Advice(f"{first} Do not end it: it started the ranks, and they may end with it.")
    if not group.controller_stopped:
        return _look_and_end(pid, "the group goes on by itself then")
    then = "the next command is taken then" if group.is_over else "the group goes on by itself"
    return Advice(f"{go_on}; or end it ({_kill('-9', pid)}), and {then}.")


def _controller_halted(group: GroupStatus, does: str) -> Finding:
    return Finding(
        "controller-stopped" if group.controller_stopped else "controller-hung",
        f"{does}, and waits for its controller, {process(group.controller_pid)}, which {group.halted}",
        f"it {group.unanswered}" if group.controller_hung else "",
        advice=(_let_go_on(group),),
    )


def _decided_soon(group: GroupStatus, does: str = "decides") -> Advice:
    keeps = "Its supervisor, or a rank," if group.supervisor_life == ALIVE else "A rank"
    return Advice(f"{keeps} {does} it within a second. If that does not happen, no rank of it goes on.")
