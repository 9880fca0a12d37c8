"""Epochs: a group's new incarnation after a rank was lost, what it restores, and which processes it replaces.

Theory of operation
-------------------
Only the controller raises the epoch, once per death, after the old process is killed and reaped. The
new epoch begins with no command; what restores the group is an ordinary first command in it.

**The version to restore** has to outlive the process that raises the epoch, and a second death before the
group is restored. So the committed word names it: a version if the group is to serve it again, none if the
group is to stay CLEARED.

**Admission outlives an epoch.** A new one begins held where that was decided last, and its restore loads
under the hold. Hold and release change no version and take no debt away: whatever dies in one, the version to
restore is the one before it.

**What a group is owed** stands in the command words, and not in their arguments alone, which may be damaged,
and are gone with the command after the next. It is owed the committed version after the loss of a rank, and
after an update in place that began while it served and was aborted behind its first byte
(:func:`owes_version_before`). The process that drove that update restores the group once
(:func:`is_to_be_restored`); if that fails, or the process is gone, the group's keeper does.

**A restore or a repair that failed is tried again, or given up.** A restore is an ordinary update, and may
fail like one. Most causes pass, so it is tried again; between two attempts the group is free for other
commands, and after any of them this epoch restores nothing more.

**Whose process the group's keeper ends and replaces** (:class:`Cause`), and when it tries again what failed
(:class:`Backoff`).

Pure: functions of a view, of what is known of the processes, and of seconds that the keeper has counted.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wsm.states import decide
from wsm.states.decide import is_over, waiting_on
from wsm.states.view import View
from wsm.states.vocabulary import KVState, OnFailure, WeightState
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StepKind, StepWord

_PREPARED = (StatusCode.PREPARED, StatusCode.DONE_COMMITTED)


def ended_by(view: View, dead: Collection[int]) -> list[int]:
    """Return the participants because of whom this epoch must end; none: it goes on.

    Those are all that died after they had joined it, even if they got no further than their step words, and
    every rank whose step broke. A participant in `dead` (without a living process) that died before it joined
    may be replaced in the same epoch.
    """
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if (index in dead and epoch in (status.epoch, _step(view, index).epoch))
        or (_step(view, index).epoch == epoch and _step(view, index).kind is StepKind.BROKEN)
    ]


def restored_version(
    view: View,
    *,
    asked: str | None,
    committed: str | None,
    served: bool | None,
    of_admission: bool = False,
) -> str | None:
    """Return the version that the group must serve again once the epoch of `view` has ended; None: none.

    It is what it was owed already, if it was not restored; else the last commanded state: what was decided,
    or what the group was before the command that its end cut short. The caller that cleared a group, or a
    half of it, uses that memory: it stays CLEARED.

    What was undecided in `view` has been decided. `asked`: the version that the last command brings, looked
    at if that is decided and not stored yet. `served`: whether all ranks served when the last command was
    admitted; None if its arguments are gone, and then a rank that still holds weights says so.
    `of_admission`: whether the last command was a hold or a release: one that was committed counts as not
    given.
    """
    command = view.command
    if command.operation is Operation.NONE or unrestored(view):
        return committed
    holds = any(
        status.weights == WeightState.NORMAL and status.kv != KVState.CLEARED for status in view.statuses
    )
    if of_admission and command.operation.is_commit:
        return committed if (holds if served is None else served) else None
    if command.operation.is_commit:
        reached = [word for word in view.of_all() if word is not None and word.code in _PREPARED]
        serves = all(word.weights != WeightState.CLEARED and word.kv != KVState.CLEARED for word in reached)
        return (asked if view.unstored else committed) if serves else None
    if command.operation is Operation.CLEAR:
        return None
    return committed if (holds if is_over(view) or served is None else served) else None


def goal_word(view: View, goal: str | None, *, held: bool | None = None) -> CommittedWord | None:
    """Return the committed word that makes `goal` outlive the epoch, if it says something else now.

    A commit that was decided is final even if the deciding epoch ends: without its word the recovery would
    load the version before it, or begin open a group that was held. A successor finds the same goal again if
    the controller dies before the epoch is raised. `held`: as for :func:`wsm.states.decide.committed`, of a
    commit that is not stored.
    """
    if view.unstored:
        return decide.committed(view, goal, held=held)
    if goal is None and view.committed.version_id is not None:
        return decide.committed(view, None)
    return None


def owes_version_before(
    operation: Operation, *, on_failure: OnFailure, serves: bool, restorable: bool
) -> bool:
    """Whether a command that is written now owes the group its committed version, should it be aborted.

    A group that lacked a half before is owed nothing: that memory belongs to the caller that cleared it.
    `serves`: whether every rank holds all that a step needs, held or not; `restorable`: whether every rank
    can load that version again.
    """
    return operation is Operation.UPDATE and on_failure is OnFailure.RESTORE and serves and restorable


#: A command that owes the group its version leaves it owed as long as this stands in its word.
_OWING = (Operation.ABORT, Operation.CLEAR, Operation.COMMIT)


def unrestored(view: View) -> bool:
    """Whether the group is owed its committed version, and no other command was given since.

    The process that raised the epoch keeps the controller role until the group is restored, or could not be.
    Other controllers may then command a group that holds nothing and waits for its version; so they may if
    that process dies.

    After an aborted update that was to restore it the version is still to be restored, and so it is after a
    clear that repaired a rank for that, and after a hold: the command word says so. An
    update that was aborted before its first byte owes nothing: the group has what it had.
    """
    command = view.command
    owes = command.operation is Operation.NONE or (command.owes and command.operation in _OWING)
    if not owes or view.committed.version_id is None:
        return False
    return not (is_over(view) and all(resident.serving for resident in decide.resident_on_each(view)))


def is_to_be_restored(view: View) -> bool:
    """Whether the next command is the restore of what the last one owes.

    The first restore of an epoch is its recovery's. A FAULTED rank is repaired before.
    """
    begun = view.command.operation is not Operation.NONE
    return begun and is_over(view) and unrestored(view) and not faulted(view)


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

    `promised`: digest of what the rank reported when that label was committed; None: another label was, or it
    is not known any more. `found`: digest of what it has loaded; None: nothing yet. `named`: whether the
    source says which version it is. `restores`: whether the load restores what the group served.
    """
    if promised is None:
        return restores and not named
    return found is not None and found != promised


def _step(view: View, participant: int) -> StepWord:
    """Return a participant's step word; a helper has none, and a zero word says nothing."""
    return view.steps[participant] if participant < len(view.steps) else StepWord.unpack(0)


def faulted(view: View) -> list[int]:
    """Return the participants of this epoch that are FAULTED."""
    epoch = view.command.epoch
    return [
        index
        for index, status in enumerate(view.statuses)
        if status.epoch == epoch and status.weights == WeightState.FAULTED
    ]


_STOPPED = (StatusCode.STOPPED_UNTOUCHED, StatusCode.STOPPED_TOUCHED)


class Cause(enum.Enum):
    """Why a participant is replaced."""

    ENDED = "its process has ended"
    STOPPED = "it was stopped while the others waited for it in a step"
    BROKEN = "its step raised"
    HUNG = "it did not end a decided command in time"
    LEFT = "it left its place in the group"
    LATE = "it did not join the epoch in time"
    FROZEN = "it stayed stopped"
    FAULTED = "its teardown failed again and again"


@dataclass(frozen=True)
class Backoff:
    """Waits before what failed is tried again: `first_s`, doubled with each failure, up to `longest_s`."""

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

    `view`: what was read before `ended` was found out: a step that broke because of a death is seen after it.
    `ended`, `stopped`: whose processes have ended, and whose are stopped (SIGSTOP, a debugger). `left`: those
    that have left their places in the group, or are dying, and whose processes have not ended: the steps of
    others break then, and only that is the cause. `leaving`: whether those processes may still be about to
    end by themselves.
    """
    if ended:
        return dict.fromkeys(sorted(ended), Cause.ENDED)
    if left:
        return {} if leaving else dict.fromkeys(sorted(left), Cause.LEFT)
    broken = ended_by(view, ())
    if not broken:
        return {}
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
    """Return the participants that have kept a decided command from its end for `limit_s` seconds.

    `waited_s` counts from when the decision was seen. Ranks drain for `drain_s` seconds more behind the
    decision of a hot command; one in `stopped`, whose process is stopped, does not.
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

    `began_s`: when those before it began; `restarts` of them may begin within `within_s` seconds. `backoff`
    counts from the second one within that time on.
    """
    before = sum(now_s - each <= within_s for each in began_s)
    return backoff.after(before) if before < restarts else None
