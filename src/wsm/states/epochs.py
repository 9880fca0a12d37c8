"""Epochs: a group's new incarnation after a rank was lost, what it restores, and which processes it replaces.

Theory of operation
-------------------
Only the controller raises the epoch, once per death, after the old process is killed and reaped. The
new epoch begins with no command; what restores the group is an ordinary first command in it. While a decision
that is made outside is open, none begins (:func:`may_end`): what the group must serve afterwards follows it.

**The version to restore** has to outlive the process that raises the epoch, and a second death before the
group is restored. So the committed word names it: a version if the group is to serve it again, none if the
group is to stay CLEARED.

**Admission outlives an epoch.** A new one begins held where that was decided last, and its restore loads
under the hold. Hold and release change no version and take no debt away: whatever dies in one, the version to
restore is the one before it.

**What a group is owed** stands in the command words of its new epoch, and not in their arguments alone, which
may be damaged, and are gone with the command after the next.

**A restore or a repair that failed is tried again, or given up** (:class:`Attempt`). A restore is an ordinary
update, and may fail like one. Most causes pass, so it is tried again; between two attempts the group is free
for other commands, and after any of them this epoch restores nothing more.

**Whose process the group's keeper ends and replaces** (:class:`Cause`), and when it tries again what failed
(:class:`Backoff`).

Pure: functions of a view, of what is known of the processes, and of seconds that the keeper has counted.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wsm.states import decide
from wsm.states.decide import is_held, is_over, waiting_on
from wsm.states.view import View
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StepKind, StepWord

_PREPARED = (StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


def ended_by(view: View, dead: Collection[int]) -> list[int]:
    """Return the participants because of whom this epoch must end; none: it goes on.

    Parameters
    ----------
    view : View
        What was read.
    dead : collection of int
        Participants without a living process.

    Returns
    -------
    list of int
        Every participant that died after it had joined this epoch, even if it got no further than its step
        word, and every rank whose step broke. A participant that died before it joined may be replaced in the
        same epoch.
    """
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if (index in dead and epoch in (status.epoch, _step(view, index).epoch))
        or (_step(view, index).epoch == epoch and _step(view, index).kind is StepKind.BROKEN)
    ]


def may_end(view: View) -> bool:
    """Whether the epoch may end as its command stands now: not before what is decided outside is known."""
    return not is_held(view)


def completed_commit(view: View, version: str | None, *, held: bool | None = None) -> CommittedWord | None:
    """Return the committed word that must be written before the epoch may be raised.

    A commit that was decided is final even if the deciding epoch ends: without this the recovery
    would load the version before it, or begin open a group that was held. `held`: as for
    :func:`wsm.states.decide.committed`.
    """
    if view.command.operation.is_commit and view.committed.sequence != view.command.sequence:
        return decide.committed(view, version, held=held)
    return None


def restored_version(
    view: View,
    *,
    asked: str | None,
    committed: str | None,
    served: bool | None,
    of_admission: bool = False,
) -> str | None:
    """Return the version that the group must serve again once the epoch of `view` has ended.

    It is the last commanded state: what was decided, else what the group was before the command that its
    end cut short.

    Parameters
    ----------
    view : View
        What was read; what was undecided has been decided, as a successor does it (:mod:`.decide`).
    asked : str or None
        The version that the last command brings; looked at if that is decided and not stored yet.
    committed : str or None
        The committed version.
    served : bool or None
        Whether all ranks served when the last command was admitted; None if its arguments are gone, and then
        a rank that still holds weights says so.
    of_admission : bool
        Whether the last command was a hold or a release: one that was committed counts as not given.

    Returns
    -------
    int or None
        None: the group stays CLEARED. The caller that cleared it uses its memory; so it does where only one
        half of the group was cleared.
    """
    command = view.command
    if command.operation is Operation.NONE:
        return committed
    holds = any(
        status.weights == WeightState.NORMAL and status.kv != KVState.CLEARED for status in view.statuses
    )
    if of_admission and command.operation.is_commit:
        return committed if (holds if served is None else served) else None
    if command.operation.is_commit:
        if not _commit_serves(view):
            return None
        return committed if view.committed.sequence == command.sequence else asked
    if command.operation is Operation.CLEAR:
        return None
    return committed if (holds if is_over(view) or served is None else served) else None


def _commit_serves(view: View) -> bool:
    """Whether all that prepared or finished the committed command hold what a step needs."""
    words = [view.of_command(index) for index in range(len(view.statuses))]
    reached = [word for word in words if word is not None and word.code in _PREPARED]
    return all(word.weights != WeightState.CLEARED and word.kv != KVState.CLEARED for word in reached)


def goal_word(view: View, goal: str | None) -> CommittedWord | None:
    """Return the committed word that makes `goal` outlive the epoch, if it says something else now.

    Written after :func:`completed_commit` and before the epoch is raised; a successor finds the
    same goal again if the controller dies in between.
    """
    if goal is None and view.committed.version_id is not None:
        return decide.committed(view, None)
    return None


#: A command that owes the group its version leaves it owed as long as this stands in its word.
_OWING = (Operation.ABORT, Operation.CLEAR, Operation.COMMIT)


def unrestored(view: View) -> bool:
    """Whether the epoch of `view` is to restore the committed version, and no other command was given in it.

    The process that raised the epoch keeps the controller role until the group is restored, or could not be.
    Other controllers may then command a group that holds nothing and waits for its version; so they may if
    that process dies.

    After an aborted update that was to restore it the version is still to be restored, and so it is after a
    clear that repaired a rank for that, and after a hold. Whether it was such a command, its word says.
    """
    command = view.command
    owes = command.operation is Operation.NONE or (command.owes and command.operation in _OWING)
    return owes and view.committed.version_id is not None


def next_epoch(view: View) -> CommandWord:
    """Return the command word that begins the next epoch; sequences go on, steps begin at 0 again."""
    return CommandWord(view.command.epoch + 1, view.command.sequence, Operation.NONE)


def first_epoch() -> CommandWord:
    """Return the command word of a new segment; zero words mean "never written", so epochs begin at 1."""
    return CommandWord(1, 0, Operation.NONE)


def is_other_content(*, promised: str | None, found: str | None, named: bool, restores: bool) -> bool:
    """Whether a rank must not say PREPARED, since it loads other weights than the group committed.

    A label means one content, of each rank's own. What names no version is restored only where a rank can
    say that it is what it was.

    Parameters
    ----------
    promised : str or None
        Digest of what the rank reported when that label was committed; None: another label was, or it is not
        known any more.
    found : str or None
        Digest of what it has loaded; None: nothing yet.
    named : bool
        Whether the source says which version it is.
    restores : bool
        Whether the load restores what the group served.
    """
    if promised is None:
        return restores and not named
    return found is not None and found != promised


def _step(view: View, participant: int) -> StepWord:
    """Return a participant's step word; a helper has none, and a zero word says nothing."""
    return view.steps[participant] if participant < len(view.steps) else StepWord.unpack(0)


class Attempt(enum.Enum):
    """What follows for a group to be restored, or with a FAULTED rank, after attempts that failed."""

    NONE = "none"  # no rank is FAULTED
    WAIT = "wait"  # a command is open: what comes of it is not known yet
    MAKE = "make"  # the first attempt, or one after others that failed
    OVERTAKEN = "overtaken"  # another command was given: the group is what that made of it
    GIVE_UP = "give up"  # tried often enough: it stays CLEARED, or the FAULTED rank's process is replaced


def faulted(view: View) -> list[int]:
    """Return the participants of this epoch that are FAULTED."""
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if status.epoch == epoch and status.weights == WeightState.FAULTED
    ]


def next_repair(view: View, *, failed: int, limit: int) -> Attempt:
    """Say what follows for FAULTED ranks after `failed` clears of the group, of which `limit` may fail.

    A clear tries the teardown again. What the group holds afterwards is nothing, as the outcome of the
    command that failed demands.
    """
    if not faulted(view):
        return Attempt.NONE
    if not is_over(view):
        return Attempt.WAIT
    return Attempt.MAKE if failed < limit else Attempt.GIVE_UP


def next_attempt(view: View, *, failed: int, limit: int) -> Attempt:
    """Say what follows after `failed` attempts to restore the group in this epoch.

    Parameters
    ----------
    view : View
        What was read; its command is over.
    failed : int
        How many of them have failed.
    limit : int
        How many may fail.
    """
    if failed and not unrestored(view):
        return Attempt.OVERTAKEN
    return Attempt.GIVE_UP if failed >= limit else Attempt.MAKE


def goal(
    view: View,
    *,
    asked: str | None,
    committed: str | None,
    served: bool | None,
    of_admission: bool = False,
) -> str | None:
    """Return the version that the group must serve once the epoch of `view` has ended; None: none.

    That is what it was owed already, if it was not restored; else what :func:`restored_version` finds.

    Parameters
    ----------
    view, asked, committed, served, of_admission
        As for :func:`restored_version`.
    """
    if unrestored(view):
        return committed
    return restored_version(view, asked=asked, committed=committed, served=served, of_admission=of_admission)


_STOPPED = (StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED)


class Cause(enum.Enum):
    """Why a participant is replaced."""

    ENDED = "its process has ended"
    STOPPED = "it was stopped while the others waited for it in a step"
    BROKEN = "its step raised"
    HUNG = "it did not end a decided command in time"
    LEFT = "it left its place in the group"


@dataclass(frozen=True)
class Backoff:
    """How long to wait before what failed is tried again.

    Parameters
    ----------
    first_s, longest_s : float
        Seconds after the first failure; doubled with each further one, up to the longest.
    """

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Seconds to wait after that many failures; 0 after none."""
        doublings = min(failures - 1, 60)  # no float holds 2 to the power of 1024
        return min(self.first_s * 2.0**doublings, self.longest_s) if failures else 0.0


def whom_to_replace(
    view: View,
    *,
    ended: Collection[int],
    stopped: Collection[int],
    left: Collection[int] = (),
    leaving: bool = False,
) -> dict[int, Cause]:
    """Return the participants that no epoch goes on with, and why; most often none.

    Parameters
    ----------
    view : View
        What was read before `ended` was found out: a step that broke because of a death is seen after it.
    ended : collection of int
        Whose processes have ended.
    stopped : collection of int
        Whose processes are stopped (SIGSTOP, a debugger).
    left : collection of int
        Those that have left their places in the group, or are dying, and whose processes have not ended: the
        steps of others break then, and only that is the cause.
    leaving : bool
        Whether those processes may still be about to end by themselves.
    """
    if ended:
        return dict.fromkeys(sorted(ended), Cause.ENDED)
    broken = ended_by(view, ())
    if not broken or (left and leaving):
        return {}
    if left:
        return dict.fromkeys(sorted(left), Cause.LEFT)
    # A stopped rank breaks the steps of those who wait for it in a collective.
    culprits, why = (stopped, Cause.STOPPED) if stopped else (broken, Cause.BROKEN)
    return dict.fromkeys(sorted(culprits), why)


def late(view: View) -> list[int]:
    """Return the participants that keep a decided command from its end.

    One that has stopped after an abort waits for others itself; once all have, it is to end alone.
    """
    if not view.command.operation.is_decision:
        return []
    waiting = waiting_on(view)
    working = [rank for rank, status in waiting.items() if status is None or status.code not in _STOPPED]
    return working or list(waiting)


def hung(
    view: View, stopped: Collection[int], *, waited_s: float, limit_s: float, drain_s: float
) -> dict[int, Cause]:
    """Return the participants that have kept a decided command from its end for too long.

    Parameters
    ----------
    view : View
        What was read.
    stopped : collection of int
        Whose processes are stopped.
    waited_s : float
        Seconds since the decision was seen.
    limit_s : float
        Seconds that a rank may take.
    drain_s : float
        Seconds more that ranks may take after the decision of a hot command, which they drain for.
    """
    if waited_s < limit_s:
        return {}
    found = late(view)
    if view.command.operation.is_hot and waited_s < limit_s + drain_s:
        found = [rank for rank in found if rank in stopped]
    return dict.fromkeys(found, Cause.HUNG)


def restart_delay_s(
    began_s: Sequence[float], now_s: float, *, restarts: int, within_s: float, backoff: Backoff
) -> float | None:
    """Return how long a recovery waits before the dead are replaced; None: there were too many.

    Parameters
    ----------
    began_s : sequence of float
        When the recoveries before this one began.
    now_s : float
        When this one begins.
    restarts : int
        How many may begin within `within_s` seconds.
    within_s : float
        The window, in seconds.
    backoff : Backoff
        From the second recovery within the window on.
    """
    before = sum(now_s - each <= within_s for each in began_s)
    return backoff.after(before) if before < restarts else None
