"""What a rule finds about a group, and what it advises: sentences, and the commands in them. Pure."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from wsm.command import PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN
from wsm.labels import is_unnamed
from wsm.states.words import (
    Operation,
)
from wsm.status.facts import (
    ALIVE,
    STOPPED,
    GroupFacts,
    RankFacts,
)
from wsm.status.rank_progress import (
    current_failures,
    version_before,
)


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Parameters
    ----------
    text : str
        A sentence.
    commands : tuple of str
        The shell commands in it, in their order; what follows a word in capitals is the reader's to fill in.
    """

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Parameters
    ----------
    code : str
        Which rule.
    state : str
        What the group does or holds, as the end of a sentence about it; without times.
    because : str
        Why; empty where there is nothing to say.
    advice : tuple of Advice
        What to do next.
    ranks : tuple of int
        The ranks that it is about.
    before : int or None
        The version that served before, where none does now.
    """

    code: str
    state: str
    because: str = ""
    advice: tuple[Advice, ...] = ()
    ranks: tuple[int, ...] = ()
    before: str | None = None

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


def load_advice(group: GroupFacts) -> tuple[Advice, ...]:
    """Advise how to bring weights: never by a version that is not known to be good, if one is."""
    if not _is_owed(group) or group.supervisor_life != ALIVE or _is_lost(group):
        return (_load_by_hand(group),)
    keeps = f"The supervisor (process {group.supervisor_pid}) tries to load it by itself, a few times: wait"
    return (Advice(f"{keeps}. If it does not serve soon, load it by hand."), _load_by_hand(group))


def _load_by_hand(group: GroupFacts) -> Advice:
    commands, whole = updates(group), _whole_version(group)
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
    if current_failures(group):
        return Advice(f"{whole[0].upper()}{whole[1:]}.")
    command = f"wsm update {group.name}"
    return Advice(f"'{command}' loads the newest version that is published.", (command,))


def updates(group: GroupFacts) -> tuple[str, ...]:
    """Return the command that loads what served before; none where that is a part, or is not known.

    What named no version is loaded as its source holds it then.
    """
    version = version_before(group)
    if version is None or group.served_bases:
        return ()
    named = "" if is_unnamed(version) else f" --version {version}"
    return (f"wsm update {group.name}{named}{_loaded_as(group, version)}",)


def _loaded_as(group: GroupFacts, version: str) -> str:
    """Return the options with which the committed version was loaded."""
    said = group.committed.load if version == group.committed.version else {}
    options = f" --transfer-mode {said['transfer_mode']}" if "transfer_mode" in said else ""
    if "verify_checksum" in said:
        options += " --verify-checksum" if said["verify_checksum"] else " --no-verify-checksum"
    if "rsync_config" in said:
        options += f" --rsync-config {shlex.quote(json.dumps(said['rsync_config']))}"
    return options


def then_update(group: GroupFacts) -> str:
    commands = updates(group)
    if group.served_bases:
        return f" After that {_whole_version(group)}: what served is a part."
    return f" After that '{commands[0]}' makes it serve again." if commands else ""


def _whole_version(group: GroupFacts) -> str:
    return f"publish a whole version V, and load it by its number: 'wsm update {group.name} --version V'"


def _failed_before(group: GroupFacts) -> bool:
    """Whether the last command was to bring the version that served before, and failed."""
    return bool(current_failures(group)) and group.asked_version == version_before(group)


def _is_lost(group: GroupFacts) -> bool:
    """Whether a restore failed since what served is nowhere: a part's bases, an overwritten source."""
    lost = (PART_NOT_RESTORABLE, SOURCE_OVERWRITTEN)
    return any(failure.report.error in lost for failure in current_failures(group))


def _is_owed(group: GroupFacts) -> bool:
    """Whether the group lost a rank and has not been given another command than its restore since."""
    command = group.command
    if command is None or command.epoch == 1 or group.committed.version is None:
        return False
    return command.operation is Operation.NONE or command.owes


def supervised_advice(group: GroupFacts, does: str) -> tuple[Advice, ...]:
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


def start_again(group: GroupFacts) -> Advice:
    """Advise to start a group again whose ranks no process replaces."""
    pids = [str(rank.pid) for rank in group.ranks if rank.life in (ALIVE, STOPPED) and rank.pid]
    kill = f"kill -9 {' '.join(pids)}"
    ends = f"End what is left of it ('{kill}'), and start" if pids else "Start"
    return Advice(
        f"No process replaces its ranks. {ends} the whole group again.{then_update(group)}",
        ((kill,) if pids else ()) + updates(group),
    )


def look_into(rank: RankFacts, group: GroupFacts) -> Advice:
    look, end = f"py-spy dump --pid {rank.pid}", f"kill -9 {rank.pid}"
    then = (
        f"the supervisor (process {group.supervisor_pid}) replaces it then"
        if group.supervisor_life == ALIVE
        else "the whole group has to be started again then"
    )
    return Advice(f"See what it does ('{look}'); if that is nothing, end it ('{end}'): {then}.", (end,))


def controller_stopped(group: GroupFacts, does: str) -> Finding:
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


def decided_soon(group: GroupFacts, does: str = "decides") -> Advice:
    keeps = "Its supervisor, or a rank," if group.supervisor_life == ALIVE else "A rank"
    return Advice(f"{keeps} {does} it within a second. If that does not happen, no rank of it goes on.")
