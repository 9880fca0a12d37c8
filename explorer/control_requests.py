"""Every order of FastDeploy's control requests (V1), of other processes' commands, and of their failures.

Two ranks, each with what it holds and what its runner calls asleep. What a request does, and what the runner
is behind it, is asked of :mod:`wsm.fastdeploy._control_contract`; which command a group takes, of
:mod:`wsm.states.decide`. How commands end is gone through: done, refused, failed before a byte was touched,
failed behind it, and with a rank whose teardown failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from explorer.engine_loop import Explored
from explorer.errors import RuleBrokenError, broken_by
from wsm.errors import WsmError
from wsm.fastdeploy import _control_contract as control
from wsm.fastdeploy._control_calls import DEADLINES_S
from wsm.fastdeploy._control_contract import ControlCommand
from wsm.states.decide import Resident, resident_on_all
from wsm.states.engine_words import Given
from wsm.states.vocabulary import ALL_TAGS, KVState, Tag, WeightState

_BOTH = (frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE}), ALL_TAGS)
_WHOLE = Resident(WeightState.NORMAL, KVState.NORMAL)
_EMPTY = Resident(WeightState.CLEARED, KVState.CLEARED)
_FAULTED = Resident(WeightState.FAULTED, KVState.CLEARED)


class Situation(NamedTuple):
    """Two ranks between two turns of FastDeploy's loop.

    Parameters
    ----------
    held : tuple of Resident
        By rank.
    asleep : tuple of frozenset of Tag
        By rank, what its runner calls asleep.
    polls : bool
        Whether the loop has the second line.
    """

    held: tuple[Resident, ...] = (_WHOLE, _WHOLE)
    asleep: tuple[frozenset[Tag], ...] = (frozenset(), frozenset())
    polls: bool = False


class _End(NamedTuple):
    """How a command has ended: what ranks hold, and whether FastDeploy's method was begun in it."""

    how: str
    held: tuple[Resident, ...]
    entered: bool = True


def explore() -> Explored:
    """Go through every situation that can come of a group that serves. Takes a second."""
    starts = [Situation(), Situation(polls=True)]
    met, due, moves = set(starts), list(starts), 0
    while due:
        situation = due.pop()
        said = ""
        try:
            for said, after in _moves(situation):  # noqa: B007 - said is what a broken rule names
                moves += 1
                if after not in met:
                    met.add(after)
                    due.append(after)
            said = "the next turn, or sleep and wakeup"
            _check_steps(situation)
            _check_repair(situation)
        except (WsmError, KeyError) as error:
            return Explored(len(met), moves, broken_by(error), (str(situation), said))
    return Explored(len(met), moves)


def _moves(now: Situation) -> Iterator[tuple[str, Situation]]:
    """Iterate over what can come next, each checked."""
    for method, tags in itertools.product(DEADLINES_S, _BOTH):
        if method == "update_weights" and tags != _BOTH[0]:
            continue
        given = control.command_of(method, tags, now.held)
        for end in _ends(given, now.held, touches=method != "sleep"):
            what = f"{method} of {', '.join(sorted(tag.value for tag in tags))}: {end.how}"
            if end.how == "done":
                _check_done(method, tags, now, end, what)
            yield what, _settled(now, end)
    yield from _commands_of_others(now)


def _commands_of_others(now: Situation) -> Iterator[tuple[str, Situation]]:
    """Iterate over commands of another process, where the loop looks at them."""
    if not now.polls or any(control.keeps_from_polling(asleep) for asleep in now.asleep):
        return
    if any(now.asleep):
        _break("a command of another process meets ranks that look at it", f"{now.asleep} are asleep")
    for given in (ControlCommand(Given.CLEAR, ALL_TAGS), ControlCommand(Given.UPDATE, ALL_TAGS)):
        for end in _ends(given, now.held, touches=True):
            yield f"a trainer's {given.given.value}: {end.how}", now._replace(held=end.held)


def _check_steps(now: Situation) -> None:
    """A runner that is not asleep steps, unless the loop asks the worker first."""
    for held, asleep in zip(now.held, now.asleep, strict=True):
        if not asleep and held != _WHOLE and not now.polls:
            _break("no runner steps without weights or KV cache", f"it steps with {held}")


def _ends(given: ControlCommand, held: tuple[Resident, ...], *, touches: bool) -> Iterator[_End]:
    """Iterate over how a command ends."""
    if given.given is Given.NOTHING:
        yield _End("done", held, entered=False)
        return
    together = resident_on_all(held)
    repairs = given.given is Given.CLEAR and given.tags == ALL_TAGS
    if (together is None or _FAULTED in held) and not repairs:
        yield _End("refused", held, entered=False)
        return
    brings = given.given is Given.UPDATE
    yield _End("done", tuple(_with(each, given.tags, there=brings) for each in held))
    for entered in (False, True):
        yield _End("failed before a byte was touched", held, entered)
    if Tag.WEIGHTS in given.tags:
        lost: tuple[Resident, ...] = (_EMPTY, _EMPTY)
        yield _End("failed behind the first byte", lost)
        yield _End("failed, and so has a teardown", (_EMPTY, _FAULTED))
    elif touches:
        yield _End("failed in the KV cache", tuple(_with(each, given.tags, there=False) for each in held))


def _with(held: Resident, tags: frozenset[Tag], *, there: bool) -> Resident:
    weights = WeightState.NORMAL if there else WeightState.CLEARED
    kv = KVState.NORMAL if there else KVState.CLEARED
    return Resident(weights if Tag.WEIGHTS in tags else held.weights, kv if Tag.KV_CACHE in tags else held.kv)


def _settled(now: Situation, end: _End) -> Situation:
    """Return what is behind a request: each runner is what its rank holds."""
    asleep = tuple(
        control.sleeping(held.weights, held.kv, kv_found=True)
        if control.settles(held.weights, entered=end.entered)
        else before
        for held, before in zip(end.held, now.asleep, strict=True)
    )
    return now._replace(held=end.held, asleep=asleep)


def _check_done(method: str, tags: frozenset[Tag], now: Situation, end: _End, what: str) -> None:
    """A request that is done has changed what it names, and nothing else where ranks were alike."""
    for before, after in zip(now.held, end.held, strict=True):
        missing = after.missing & tags
        if missing != (tags if method == "sleep" else frozenset()):
            _break("a request that is done has done what it names", f"{what} leaves {after}")
        if resident_on_all(now.held) is not None and after.missing - tags != before.missing - tags:
            _break("a request leaves alone what it does not name", f"{what} makes {after} of {before}")


def _check_repair(now: Situation) -> None:
    """From everywhere a sleep and a wakeup of both halves lead back to a group that serves."""
    for method in ("sleep", "wakeup"):
        end = next(_ends(control.command_of(method, ALL_TAGS, now.held), now.held, touches=True))
        now = _settled(now, end)
    if set(now.held) != {_WHOLE} or any(now.asleep):
        _break("a sleep and a wakeup of both halves bring every group back", f"it ends as {now}")


def _break(rule: str, seen: str) -> None:
    raise RuleBrokenError(rule=rule, seen=seen)
