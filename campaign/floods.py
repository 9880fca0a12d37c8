"""Plays cases in which a peer floods or lies while a trainer streams a version to a group.

Three of them: a stranger floods the trainer, a flood comes from where the trainer should be, and the trainer
sends what it must not. Whatever is said, the command ends within its deadline with a receipt or an error of a
type, the group holds one version, and once the peer is gone a good version is streamed and serves.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaign.asking import Answer
from campaign.case import Case
from campaign.environment import victims_environment
from campaign.flooding_peer import KINDS
from campaign.group import GroupUnderFault
from campaign.operations import outcome_of
from campaign.played_config import shards_of
from campaign.rank_faults import account
from campaign.result import Result
from wsm.errors import WsmError
from wsm.strategies import BucketSender

#: What a caller grants the command, and how much later it may answer on a busy machine, in seconds.
_DEADLINE_S = 15.0
_LATE_S = 5.0

_JOIN_S = 12.0

#: What a rank that is told to load hears in the place of a trainer. Silence is what is left of a hung one.
_IN_ITS_PLACE = ("small messages", "large messages", "endless parts", "no ZMQ", "connections")

Shards = dict[int, dict[str, Any]]
Publish = Callable[[GroupUnderFault, Callable[[], Any], str], Any]


def _another_shape(shards: Shards) -> None:
    name = min(shards[0])
    shards[0][name] = shards[0][name].ravel()[:-1]


def _a_tensor_less(shards: Shards) -> None:
    del shards[0][min(shards[0])]


def _a_tensor_more(shards: Shards) -> None:
    shards[0]["unheard.of"] = shards[0][min(shards[0])]


SHAPES: dict[str, Callable[[Shards], None]] = {
    "another shape": _another_shape,
    "a tensor less": _a_tensor_less,
    "a tensor more": _a_tensor_more,
    "another version": lambda _shards: None,
}


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases: who floods or lies, and how."""
    said = [f"stranger:{each}" for each in KINDS]
    said += [f"instead:{each}" for each in _IN_ITS_PLACE]
    said += [f"trainer:{each}" for each in SHAPES]
    return [Case(kind, ranks, "floods", each.replace(" ", "-")) for each in said]


def play(case: Case, group: GroupUnderFault, result: Result) -> None:
    """Play one case, on a group of its own whose versions are streamed."""
    hold_out(case, group, result, arrives="ipc_async", publishes=_streamed)


def hold_out(
    case: Case,
    group: GroupUnderFault,
    result: Result,
    *,
    arrives: str,
    publishes: Publish,
    speaks: tuple[str, ...] = (),
) -> None:
    """Start a group whose versions come from a trainer, let a peer flood or lie, and judge what came of it.

    Parameters
    ----------
    case, group, result
        As for :func:`play`.
    arrives : str
        How versions come, as :class:`campaign.group.GroupUnderFault` takes it.
    publishes : callable
        ``publishes(group, ask, said)``: lets the newest version be had, or what is `said` instead, while the
        group is asked for it; returns what came of the asking.
    speaks : tuple of str
        How :mod:`campaign.flooding_peer` is told what to speak.
    """
    who, _, said = case.what.replace("-", " ").partition(":")
    result.leftovers += group.stop()  # what its ranks are told by their environment is for another group
    with GroupUnderFault(case.kind, case.ranks, arrives=arrives) as own:
        own.published = 1
        publishes(own, own.start, "")
        own.published = 2
        answer, began = _ask_beside(own, who, said, publishes, speaks), time.monotonic()
        result.said = answer.said
        result.error = "" if answer.error is None else type(answer.error).__name__
        own.until(lambda: own.status().over, "the command is over")
        own.until(own.is_whole, "every rank is there, and done with the command")
        status = own.status()
        result.outcome = outcome_of(status, 1, 2)
        result.require(result.outcome in ("old version", "new version", "CLEARED"), status.sentence())
        result.detected_ms = (time.monotonic() - began) * 1e3
        lied = who != "stranger"
        result.require(not lied or answer.receipt is None, f"what it must not load was loaded: {answer.said}")
        own.published = 3
        good = publishes(own, lambda: own.command("update", 3), "")
        if good.receipt is None:
            result.problems.append(f"a good version afterwards failed: {good.said}")
        else:
            account(result, *own.await_service(3))
        result.leftovers += own.stop()


def _streamed(group: GroupUnderFault, ask: Callable[[], Any], said: str) -> Any:
    """Stream the newest version, or a lie about it, while the group is asked for it."""
    version = group.published
    shards = shards_of(group.config, version)
    if said in SHAPES:
        SHAPES[said](shards)
    with BucketSender(group.trainer_address) as sender, contextlib.suppress(WsmError):
        sent = version + 1 if said == "another version" else version
        with sender.sending(sent, shards, join_s=_JOIN_S) as sending:
            answer = ask()
            sending.cancel()
    return answer


def _ask_beside(
    group: GroupUnderFault, who: str, said: str, publishes: Publish, speaks: tuple[str, ...]
) -> Answer:
    """Ask for the newest version while a peer floods or lies; return the answer."""
    address = group.trainer_address
    if who == "instead":
        with _flood("--listen", *speaks, address, said):
            answer = _timely(group)
        Path(address.removeprefix("ipc://")).unlink()
        return answer
    with contextlib.ExitStack() as stack:

        def ask() -> Answer:
            if who == "stranger":
                stack.enter_context(_flood(*speaks, address, said))
            return _timely(group)

        heard: Answer = publishes(group, ask, said if who == "trainer" else "")
    return heard


def _timely(group: GroupUnderFault) -> Answer:
    """Ask for version 2, and hold the caller's deadline against when it was answered."""
    began = time.monotonic()
    answer = group.command("in_place", 2, deadline_s=_DEADLINE_S)
    took = time.monotonic() - began
    if took > 2 * _DEADLINE_S + _LATE_S:  # until the decision, and until the ranks have settled
        raise AssertionError(f"the command was answered after {took:.0f} s")
    return answer


@contextlib.contextmanager
def _flood(*arguments: str) -> Iterator[None]:
    """Let a process flood an address, or each caller of it, until the block ends."""
    peer = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
        [sys.executable, "-m", "campaign.flooding_peer", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=victims_environment(),
    )
    with peer:
        try:
            if peer.stdout is None or not peer.stdout.readline():
                raise RuntimeError(f"the flooding peer ended with {peer.wait()}")
            yield
        finally:
            peer.kill()
