"""The one thing that keeps a group from serving, why it is so, and what to do. Pure; the first rule counts.

``wsm status``, ``wsm explain`` and the errors of controllers say what these rules find. An advice names the
commands that it means, with their version; the tests carry them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from wsm.command import PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN
from wsm.labels import is_unnamed
from wsm.states.vocabulary import ALL_TAGS, Tag, sentence_of
from wsm.states.words import (
    Operation,
    StatusCode,
    StatusWord,
    StepKind,
    StepWord,
    code_name,
    steps_ahead,
)
from wsm.status._decisions import decision_held
from wsm.status._finding import Advice, Finding
from wsm.status._holds import hold_in_words
from wsm.status.facts import (
    ALIVE,
    DEAD,
    NEVER,
    STOPPED,
    FailureFacts,
    GroupFacts,
    RankFacts,
    who,
    whose_processes,
)

#: Errors of ranks that only repeat that another rank failed.
_ECHOES = frozenset(("peer-never-ready", "command-aborted"))

#: Errors of a rank that waited for another one: told only where that one has nothing to tell.
_WAITS = frozenset(("action-interrupted", "peer-failed", "wait-expired"))

_DOES = {
    StatusCode.NONE: "has not answered",
    StatusCode.ATTACHED: "has not answered",
    StatusCode.DRAINING: "is draining",
    StatusCode.PARKING: "has stopped stepping",
    StatusCode.ACCEPTED: "has accepted it",
    StatusCode.RUNNING: "is running",
    StatusCode.PREPARED: "is prepared",
    StatusCode.FAILED: "has failed",
    StatusCode.REFUSED: "has refused it",
    StatusCode.STOPPED_UNTOUCHED: "has stopped",
    StatusCode.STOPPED_TOUCHED: "has stopped",
}


def find(group: GroupFacts) -> Finding:
    """Return the most important thing about a group."""
    return next(filter(None, (rule(group) for rule in _RULES)), Finding("unknown", "does not serve"))


def waited_for(group: GroupFacts) -> dict[int, str]:
    """Return the ranks that the others wait for in the last command, and what each is doing.

    Those whose processes are stopped or gone where there are such; else the least advanced of all that are
    not done, and the ranks that hold these up inside a step.
    """
    late = late_ranks(group)
    stuck = {rank: what for rank, what in late.items() if _rank(group, rank).life in (STOPPED, DEAD)}
    return stuck or late


def late_ranks(group: GroupFacts) -> dict[int, str]:
    """Return the least advanced ranks that are not done, those that hold them up, and what each does."""
    open_ranks = [rank for rank in group.ranks if not is_done(rank, group)]
    least = min((_progress(rank, group) for rank in open_ranks), default=None)
    found = {rank.number: doing(rank, group) for rank in open_ranks if _progress(rank, group) == least}
    for rank in group.ranks:
        held_up = [] if rank.number in found else [other for other in found if _holds_up(rank, other, group)]
        if rank.number not in found and rank.life == STOPPED:
            found[rank.number] = doing(rank, group)
        elif held_up:
            other = _rank(group, held_up[0])
            step = other.step.step if other.step is not None else 0
            found[rank.number] = f"has not entered step {step}, in which {who(other.number)} is"
    return found


def doing(rank: RankFacts, group: GroupFacts) -> str:
    """Say in a few words what a rank is doing for the command at hand; without times."""
    command = group.command
    code = None if command is None else rank.code(command)
    if rank.life == DEAD:
        return "is gone"
    stopped = "; its process is stopped" if rank.life == STOPPED else ""
    inside = rank.action if rank.action is not None and rank.action.seconds is not None else None
    if code is None or command is None:
        return f"has not answered{stopped}"
    if code is StatusCode.RUNNING and inside is None:
        before = rank.action.name if rank.action is not None else f"action {_index(rank)} of its plan"
        return f"waits for votes before {before}{stopped}"
    what = "is staging" if code_name(command.operation, code) == "STAGING" else _DOES.get(code, "is done")
    return f"{what}{f' {inside.name}' if inside is not None else ''}{stopped}"


def in_sentence(late: Mapping[int, str]) -> str:
    """List ranks and what each is doing: ``rank 0 (has not answered) and rank 1 (is prepared)``."""
    return " and ".join(f"{who(rank)} ({what})" for rank, what in late.items())


def first_failure(failures: Iterable[FailureFacts]) -> FailureFacts | None:
    """Return the failure that is the cause of the others, if one is: echoes never, waits last."""
    found = [one for one in failures if one.report.error not in _ECHOES]
    return min(found, key=lambda one: one.report.error in _WAITS, default=None)


def is_echo(error: str) -> bool:
    """Whether a rank's error only repeats that another rank failed."""
    return error in _ECHOES


def is_wait(error: str) -> bool:
    """Whether a rank's error says only that it waited for another one."""
    return error in _WAITS


def not_parked(steps: Sequence[StepWord], *, sequence: int, step: int) -> list[int]:
    """Return the ranks that are not parked behind `step` for command `sequence`."""
    here = (StepKind.PARKED, sequence, 0)
    found = [(word.kind, word.sequence, steps_ahead(word.step, step)) for word in steps]
    return [rank for rank, stands in enumerate(found) if stands != here]


def not_ready(statuses: Sequence[StatusWord], *, action: int) -> list[int]:
    """Return the participants that have not voted for the collective `action` of their plans."""
    return [rank for rank, word in enumerate(statuses) if word.ready <= action]


def is_done(rank: RankFacts, group: GroupFacts) -> bool:
    """Whether a rank is done with the last command; without one, whether it has joined the epoch."""
    command = group.command
    if command is None:
        return False
    if command.operation is Operation.NONE:
        return rank.status is not None and rank.status.epoch == command.epoch
    code = rank.code(command)
    return code is not None and code.is_terminal


def asked(group: GroupFacts) -> str:
    """Name the last command: ``update to version 7``, ``clear of the KV cache``."""
    command, arguments = group.command, group.arguments
    if command is None:
        return "last command"
    clears = arguments.clears if arguments is not None else command.operation is Operation.CLEAR
    tags = ALL_TAGS if arguments is None else arguments.tags
    half = "" if tags == ALL_TAGS else f" of {sentence_of(tags)}"
    if clears:
        return f"clear{half}"
    version = "" if group.asked_version is None else f" to version {group.asked_version}"
    if arguments is not None and arguments.restores:
        return f"restore of version {group.asked_version}"
    kind = "hot update" if command.operation.is_hot else "update"
    return f"{kind}{half}" if tags == {Tag.KV_CACHE} else f"{kind}{half}{version}"


def version_before(group: GroupFacts) -> str | None:
    """Return the version that is known to be good: that was committed last, or served last."""
    return group.committed.version if group.committed.version is not None else group.served_version


def controller_in_words(group: GroupFacts) -> str:
    """Say of the process that has the controller role which one it is and what it commands."""
    pid, command = group.controller_pid, group.command
    role = ""
    if pid is not None and pid == group.supervisor_pid:
        role = "the supervisor, "
    elif pid is not None and pid == group.starter_pid:
        role = "which started the group and "
    if command is None or command.operation is Operation.NONE:
        return f"{role}waits for the ranks" if role else "which is about to command it"
    over = "has ended" if _is_over(group) else "carries out"
    return f"{role}{'' if role.endswith('and ') else 'which '}{over} the {asked(group)}"


def is_current(failure: FailureFacts, group: GroupFacts) -> bool:
    """Whether a failure belongs to the last command."""
    command = group.command
    return command is not None and (failure.epoch, failure.sequence) == command[:2]


# -- the rules, in the order of weight -----------------------------------------------------------


def _unreadable(group: GroupFacts) -> Finding | None:
    return Finding("unreadable", f"cannot be read: {group.problem}") if group.problem else None


def _damaged(group: GroupFacts) -> Finding | None:
    if not group.damaged:
        return None
    return Finding(
        "damaged",
        f"has words that no process of it can have written: {'; '.join(group.damaged)}",
        advice=(
            Advice("A process outside of the group has written into its segment, or its memory is faulty."),
            Advice("End all processes of the group, keep the segment and the journals, and start it again."),
        ),
    )


def _starting(group: GroupFacts) -> Finding | None:
    absent = [rank.number for rank in group.ranks if rank.life == NEVER]
    if not absent or any(rank.life == DEAD for rank in group.ranks):
        return None
    starter = group.starter_pid
    if starter is not None:
        advice = Advice(f"Process {starter} starts the ranks: wait; their logs say what they wait for.")
    elif len(absent) == len(group.ranks):
        advice = Advice("Start the workers.")
    else:
        advice = Advice(f"Start {_names(absent)}; if it was started, its log says what it waits for.")
    waits = "no rank has attached yet"
    if len(absent) < len(group.ranks):
        waits = f"{_names(absent)} {_has(absent)} not attached yet"
    return Finding("starting", f"is starting: {waits}", advice=(advice,), ranks=tuple(absent))


def _dead(group: GroupFacts) -> Finding | None:
    dead = [rank.number for rank in group.ranks if rank.life == DEAD]
    if not dead:
        return None
    supervised = _supervised(group, f"replaces {_names(dead)}")
    if len(dead) == len(group.ranks):
        return Finding(
            "dead",
            "is dead: none of its processes lives",
            advice=supervised or (Advice(f"Start the group again.{_then_update(group)}", _update(group)),),
            ranks=tuple(dead),
            before=version_before(group),
        )
    verb = "is" if len(dead) == 1 and not _several(dead) else "are"
    return Finding(
        "rank-lost",
        f"has lost {_names(dead)}, and needs every rank",
        f"{whose_processes(dead)} {verb} gone",
        advice=supervised or (_start_again(group),),
        ranks=tuple(dead),
        before=version_before(group),
    )


def _stopped(group: GroupFacts) -> Finding | None:
    stopped = [rank for rank in group.ranks if rank.life == STOPPED]
    if not stopped:
        return None
    ranks = tuple(rank.number for rank in stopped)
    pids = " ".join(str(rank.pid) for rank in stopped)
    go_on = f"kill -CONT {pids}"
    if group.supervisor_life == ALIVE:
        advice = Advice(
            f"Let it go on ('{go_on}'), or end it ('kill -9 {pids}'): the supervisor (process "
            f"{group.supervisor_pid}) replaces it then.",
            (go_on, f"kill -9 {pids}"),
        )
    else:
        advice = Advice(
            f"Let it go on ('{go_on}'). No process replaces it: if it is ended, the whole group has to be "
            "started again.",
            (go_on,),
        )
    return Finding(
        "rank-stopped",
        f"waits for {_names(ranks)}, whose process is stopped",
        "" if _is_over(group) else f"the {asked(group)} is under way",
        advice=(advice,),
        ranks=ranks,
        before=version_before(group),
    )


def _joining(group: GroupFacts) -> Finding | None:
    command = group.command
    if command is None:
        return None
    late = [rank.number for rank in group.ranks if rank.status is None or rank.status.epoch < command.epoch]
    if not late:
        return None
    if command.epoch == 1:
        return Finding(
            "starting",
            f"is starting: {_names(late)} {_has(late)} not joined yet",
            advice=(Advice("Wait; its log says what it is doing."),),
            ranks=tuple(late),
        )
    return Finding(
        "joining",
        f"waits for {_names(late)} to join epoch {command.epoch}",
        advice=(
            Advice(
                "A living rank releases what it held before it joins; its last entries say what it is in."
            ),
        ),
        ranks=tuple(late),
        before=version_before(group),
    )


def _broken(group: GroupFacts) -> Finding | None:
    broken = [rank.number for rank in group.ranks if rank.is_broken and _is_here(rank, group)]
    if not broken:
        return None
    advice = _supervised(group, f"replaces {_names(broken)}, which begins a new epoch") or (
        _start_again(group),
    )
    return Finding(
        "step-broken",
        f"cannot step: a step raised on {_names(broken)}",
        advice=(*advice, Advice("The log of that rank names what its step raised.")),
        ranks=tuple(broken),
        before=version_before(group),
    )


def _is_here(rank: RankFacts, group: GroupFacts) -> bool:
    """Whether a rank's step is of the present epoch: one that broke in another is answered by this one."""
    return rank.step is not None and group.command is not None and rank.step.epoch == group.command.epoch


def _under_way(group: GroupFacts) -> Finding | None:
    command = group.command
    if command is None or command.operation is Operation.NONE:
        return None
    open_ranks = [rank for rank in group.ranks if not is_done(rank, group)]
    if not open_ranks:
        return None
    operation, what = command.operation, asked(group)
    late = waited_for(group)
    meanwhile = f"serves version {group.committed.version}, and " if group.serving else ""
    by = f" of process {group.controller_pid}" if group.controller_pid else ""
    does = f"carries out the {what}{by}"
    if operation.is_commit:
        does = f"ends the {what}{by}, which is decided"
    elif operation.is_abort:
        does = f"takes back the {what}{by}{_why_aborted(group)}"
    state = f"{meanwhile}{does}, and waits for {in_sentence(late)}"
    ranks = tuple(late)
    overdue = [rank for rank in open_ranks if _overdue_s(rank) > 0]
    if overdue:
        worst = max(overdue, key=_overdue_s)
        action = worst.action.name if worst.action is not None else "an action"
        return Finding(
            "action-overdue",
            f"{meanwhile}{does}, and waits for {who(worst.number)}, which is past the deadline of {action}",
            advice=(_look_into(worst, group),),
            ranks=(worst.number,),
        )
    stopped = group.controller_stopped and not operation.is_decision
    holds = f"{meanwhile}has prepared the {what}"
    held = _controller_stopped(group, f"{meanwhile}{does}") if stopped else decision_held(group, holds)
    if held is not None:
        return held
    if group.role_known and group.controller_pid is None and not operation.is_decision:
        return Finding(
            "controller-gone",
            f"{meanwhile}is left with the {what} undecided: its controller is gone",
            advice=(_decided_soon(group),),
            ranks=ranks,
        )
    names = _names(ranks)
    if not operation.is_decision and any(_has_failed(rank, group) for rank in open_ranks):
        state, names = (
            f"{meanwhile}{does}{_why_aborted(group)}, and waits for its controller to decide",
            "the controller",
        )
    return Finding(
        "under-way",
        state,
        advice=(Advice(f"Wait; if it does not end, see the log of {names}."),),
        ranks=ranks,
    )


def _uncommitted(group: GroupFacts) -> Finding | None:
    command = group.command
    if command is None or not command.operation.is_commit or group.committed.sequence == command.sequence:
        return None
    does = f"has decided the {asked(group)}, and its version is not written yet"
    if group.controller_stopped:
        return _controller_stopped(group, does)
    return Finding("uncommitted", does, advice=(_decided_soon(group, "writes"),))


def _faulted(group: GroupFacts) -> Finding | None:
    faulted = [rank.number for rank in group.ranks if rank.weights == "FAULTED"]
    if not faulted:
        return None
    clear = f"wsm clear {group.name}"
    commands = (clear, *_update(group))
    advice = [Advice(f"'{clear}' tries it again on all ranks.{_then_update(group)}", commands)]
    if group.supervisor_life == ALIVE:
        advice = [
            Advice(
                f"The supervisor (process {group.supervisor_pid}) clears the group again by itself, a few "
                f"times, and then replaces the rank; wait, or do it by hand: '{clear}'.{_then_update(group)}",
                commands,
            )
        ]
    return Finding(
        "faulted",
        f"could not release its memory on {_names(faulted)}",
        _failed(group),
        advice=tuple(advice),
        ranks=tuple(faulted),
        before=version_before(group),
    )


def _record_lost(group: GroupFacts) -> Finding | None:
    advice = Advice(f"'wsm update {group.name} --version VERSION --force' writes its record anew.")
    told = "does not know any more which version it has committed"
    return Finding("record-lost", told, group.record_lost, advice=(advice,)) if group.record_lost else None


def _serving(group: GroupFacts) -> Finding | None:
    if not group.serving:
        return None
    version = group.committed.version
    unproven = ", unverified: its source names no version" if version and is_unnamed(version) else ""
    return Finding("serving", f"serves version {version}{unproven}", _kept(group))


def _held(group: GroupFacts) -> Finding | None:
    told = hold_in_words(group)
    if told is None:
        return None
    advice = (Advice(told.advice, (told.command,)),) if told.command else _load(group)
    before = None if told.command else version_before(group)
    return Finding("held", told.state, told.because, advice=advice, before=before)


def _half(group: GroupFacts) -> Finding | None:
    held = {(rank.weights, rank.kv) for rank in group.ranks if not rank.helper}
    if held == {("NORMAL", "CLEARED")}:
        command = f"wsm update {group.name} --tags kv_cache"
        return Finding(
            "without-kv-cache",
            f"holds version {group.committed.version}, and does not serve without a KV cache",
            _ended(group),
            advice=(Advice(f"'{command}' rebuilds the KV cache, and then it serves.", (command,)),),
        )
    if held == {("CLEARED", "NORMAL")}:
        return Finding(
            "without-weights",
            "holds its KV cache, and does not serve without weights",
            _ended(group),
            advice=_load(group),
            before=version_before(group),
        )
    return None


def _cleared(group: GroupFacts) -> Finding | None:
    if any(rank.weights != "CLEARED" for rank in group.ranks if not rank.helper):
        return None
    return Finding(
        "cleared",
        "holds no weights",
        _ended(group),
        advice=_load(group),
        before=version_before(group),
    )


def _mixed(group: GroupFacts) -> Finding | None:
    states = ", ".join(f"{who(rank.number)} {rank.weights}, KV cache {rank.kv}" for rank in group.ranks)
    clear = f"wsm clear {group.name}"
    return Finding(
        "mixed",
        "holds different things on its ranks",
        states,
        advice=(
            Advice(f"'{clear}' brings the ranks together.{_then_update(group)}", (clear, *_update(group))),
        ),
        before=version_before(group),
    )


_RULES: Sequence[Callable[[GroupFacts], Finding | None]] = (
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
    _serving,
    _held,
    _faulted,
    _half,
    _cleared,
    _mixed,
)


# -- what several rules say ----------------------------------------------------------------------


def _load(group: GroupFacts) -> tuple[Advice, ...]:
    """Advise how to bring weights: never by a version that is not known to be good, if one is."""
    if not _is_owed(group) or group.supervisor_life != ALIVE or _is_lost(group):
        return (_load_by_hand(group),)
    keeps = f"The supervisor (process {group.supervisor_pid}) tries to load it by itself, a few times: wait"
    return (Advice(f"{keeps}. If it does not serve soon, load it by hand."), _load_by_hand(group))


def _load_by_hand(group: GroupFacts) -> Advice:
    commands, whole = _update(group), _whole_version(group)
    if commands and is_unnamed(version_before(group) or ""):
        return Advice(f"'{commands[0]}' loads what its source holds now, under a label of its own.", commands)
    if commands and _failed_before(group):
        return Advice(f"'{commands[0]}' tries that version again; if it fails again, {whole}.", commands)
    if commands:
        return Advice(f"'{commands[0]}' makes it serve that version again.", commands)
    if group.served_bases:
        bases = ", ".join(map(str, group.served_bases))
        return Advice(
            f"Version {version_before(group)} is a part, put on version{'s' * (len(group.served_bases) > 1)} "
            f"{bases}, and is not loaded by its number: {whole}."
        )
    if _current_failures(group):
        return Advice(f"{whole[0].upper()}{whole[1:]}.")
    command = f"wsm update {group.name}"
    return Advice(f"'{command}' loads the newest version that is published.", (command,))


def _update(group: GroupFacts) -> tuple[str, ...]:
    """Return the command that loads what served before; none where that is a part, or is not known.

    What named no version is loaded as its source holds it then.
    """
    version = version_before(group)
    if version is None or group.served_bases:
        return ()
    named = "" if is_unnamed(version) else f" --version {version}"
    return (f"wsm update {group.name}{named}",)


def _then_update(group: GroupFacts) -> str:
    commands = _update(group)
    if group.served_bases:
        return f" After that {_whole_version(group)}: what served is a part."
    return f" After that '{commands[0]}' makes it serve again." if commands else ""


def _whole_version(group: GroupFacts) -> str:
    return f"publish a whole version V, and load it by its number: 'wsm update {group.name} --version V'"


def _failed_before(group: GroupFacts) -> bool:
    """Whether the last command was to bring the version that served before, and failed."""
    return bool(_current_failures(group)) and group.asked_version == version_before(group)


def _is_lost(group: GroupFacts) -> bool:
    """Whether a restore failed since what served is nowhere: a part's bases, an overwritten source."""
    lost = (PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN)
    return any(failure.report.error in lost for failure in _current_failures(group))


def _is_owed(group: GroupFacts) -> bool:
    """Whether the group lost a rank and has not been given another command than its restore since."""
    command, arguments = group.command, group.arguments
    if command is None or command.epoch == 1 or group.committed.version is None:
        return False
    restores = arguments is not None and arguments.restores
    return command.operation is Operation.NONE or (restores and not command.operation.is_commit)


def _ended(group: GroupFacts) -> str:
    """Say how the last command left the group as it is."""
    command = group.command
    if command is None:
        return ""
    if command.operation is Operation.NONE:
        if command.epoch == 1:
            return "nothing was loaded yet"
        owed = group.committed.version
        lost = f"epoch {command.epoch} began when a rank was lost"
        return lost if owed is None else f"{lost}, and version {owed} is not loaded again yet"
    if command.operation.is_abort:
        released = (
            "" if group.arguments is not None and group.arguments.clears else ", and every rank released"
        )
        kept = {tag for tag in (Tag.WEIGHTS, Tag.KV_CACHE) if _all_hold(group, tag)}
        what = sentence_of(ALL_TAGS - kept)
        return f"{_failed(group)}{f'{released} {what}' if released else ''}"
    if command.operation is Operation.CLEAR:
        by = f" ({group.request_id})" if group.request_id else ""
        return f"the last command, a {asked(group)}{by}, released {_released(group)}"
    return f"the last command was the {asked(group)}"


def _released(group: GroupFacts) -> str:
    tags = ALL_TAGS if group.arguments is None else group.arguments.tags
    return "them" if tags != {Tag.KV_CACHE} else "it"


def _all_hold(group: GroupFacts, tag: Tag) -> bool:
    states = {rank.weights if tag is Tag.WEIGHTS else rank.kv for rank in group.ranks if not rank.helper}
    return states == {"NORMAL"}


def _kept(group: GroupFacts) -> str:
    """Say of a group that serves how its last command ended, where that is not by bringing what is served."""
    command = group.command
    if command is None or not command.operation.is_abort:
        return ""
    no_fault = [rank for rank in group.ranks if _is_no_fault(rank, group)]
    if no_fault:
        return "the last update named no version, and the newest one is served already"
    return f"{_failed(group)}, and changed nothing"


def _failed(group: GroupFacts) -> str:
    """Say that the last command failed, on which rank and in what."""
    failure = first_failure(_current_failures(group))
    if failure is None:
        return f"the {asked(group)} was aborted"
    rank = _rank(group, failure.report.rank)
    why = ", since its source was overwritten" if failure.report.error == SOURCE_OVERWRITTEN else ""
    if failure.refused:
        return f"the {asked(group)} was refused by {who(rank.number)}{why}"
    return f"the {asked(group)} failed on {who(rank.number)} in {failure.report.action}{why}"


def _why_aborted(group: GroupFacts) -> str:
    failure = first_failure(_current_failures(group))
    if failure is None:
        return ""
    rank = _rank(group, failure.report.rank)
    verb = "was refused by" if failure.refused else "failed on"
    where = "" if failure.refused else f" in {failure.report.action}"
    return f", which {verb} {who(rank.number)}{where}"


def _current_failures(group: GroupFacts) -> list[FailureFacts]:
    return [
        rank.failure
        for rank in group.ranks
        if rank.failure is not None and is_current(rank.failure, group) and not rank.failure.is_no_fault
    ]


def _is_no_fault(rank: RankFacts, group: GroupFacts) -> bool:
    return rank.failure is not None and rank.failure.is_no_fault and is_current(rank.failure, group)


def _supervised(group: GroupFacts, does: str) -> tuple[Advice, ...]:
    """Say what the supervisor does by itself; nothing where none keeps the group."""
    pid = group.supervisor_pid
    if group.supervisor_life == ALIVE:
        return (Advice(f"The supervisor (process {pid}) {does}: wait."),)
    if group.supervisor_life == STOPPED:
        command = f"kill -CONT {pid}"
        return (
            Advice(
                f"The supervisor (process {pid}) {does} once it goes on, and is stopped: '{command}'.",
                (command,),
            ),
        )
    return ()


def _start_again(group: GroupFacts) -> Advice:
    """Advise to start a group again whose ranks no process replaces."""
    pids = [str(rank.pid) for rank in group.ranks if rank.life in (ALIVE, STOPPED) and rank.pid]
    kill = f"kill -9 {' '.join(pids)}"
    ends = f"End what is left of it ('{kill}'), and start" if pids else "Start"
    return Advice(
        f"No process replaces its ranks. {ends} the whole group again.{_then_update(group)}",
        ((kill,) if pids else ()) + _update(group),
    )


def _look_into(rank: RankFacts, group: GroupFacts) -> Advice:
    look, end = f"py-spy dump --pid {rank.pid}", f"kill -9 {rank.pid}"
    then = (
        f"the supervisor (process {group.supervisor_pid}) replaces it then"
        if group.supervisor_life == ALIVE
        else "the whole group has to be started again then"
    )
    return Advice(f"See what it does ('{look}'); if that is nothing, end it ('{end}'): {then}.", (end,))


def _controller_stopped(group: GroupFacts, does: str) -> Finding:
    pid = group.controller_pid
    go_on, end = f"kill -CONT {pid}", f"kill -9 {pid}"
    advice = Advice(
        f"Let that process go on ('{go_on}'); or end it ('{end}'), and the group goes on by itself.",
        (go_on, end),
    )
    if pid in (group.supervisor_pid, group.starter_pid):
        # Ranks ask the kernel to end them with the process that started them.
        advice = Advice(
            f"Let that process go on ('{go_on}'). Do not end it: it started the ranks, and they may end with "
            "it.",
            (go_on,),
        )
    return Finding(
        "controller-stopped",
        f"{does}, and waits for its controller, process {pid}, which is stopped",
        advice=(advice,),
    )


def _decided_soon(group: GroupFacts, does: str = "decides") -> Advice:
    keeps = "Its supervisor, or a rank," if group.supervisor_life == ALIVE else "A rank"
    return Advice(f"{keeps} {does} it within a second. If that does not happen, no rank of it goes on.")


def _holds_up(rank: RankFacts, other: int, group: GroupFacts) -> bool:
    """Whether `other` is inside a step that `rank` has not entered: no rank leaves it before all are in."""
    inside, here = _rank(group, other).step, rank.step
    return (
        inside is not None
        and here is not None
        and (inside.epoch, inside.kind) == (here.epoch, StepKind.RUNNING)
        and steps_ahead(inside.step, here.step) > 0
    )


def _has_failed(rank: RankFacts, group: GroupFacts) -> bool:
    code = None if group.command is None else rank.code(group.command)
    return code is not None and code.is_failure


def _overdue_s(rank: RankFacts) -> float:
    action = rank.action
    return 0.0 if action is None or action.seconds is None else action.seconds - action.deadline_s


def _progress(rank: RankFacts, group: GroupFacts) -> tuple[int, ...]:
    code = None if group.command is None else rank.code(group.command)
    if code is None or rank.status is None:
        return (-1,)
    return (code, rank.status.action, rank.status.ready)


def _is_over(group: GroupFacts) -> bool:
    return all(is_done(rank, group) for rank in group.ranks)


def _rank(group: GroupFacts, number: int) -> RankFacts:
    return group.ranks[number]


def _index(rank: RankFacts) -> int:
    return 0 if rank.status is None else rank.status.action


def _several(ranks: Sequence[int]) -> bool:
    return len(ranks) > 1


def _has(ranks: Sequence[int]) -> str:
    return "have" if _several(ranks) else "has"


def _names(ranks: Sequence[int]) -> str:
    """List participants as in a sentence: ``ranks 0, 1 and the KV-cache process``."""
    numbers = [str(rank) for rank in ranks if who(rank).startswith("rank")]
    others = [who(rank) for rank in ranks if not who(rank).startswith("rank")]
    listed = [f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] if numbers else []
    return " and ".join([*listed, *others])
