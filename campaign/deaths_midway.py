"""Processes die, stand still or run out of something while a command is under way, or a group is restored."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from campaign.fault import Act, Fault
from campaign.group import GroupUnderFault

#: Given the group, and chance: begins what goes wrong, and returns what is to be done once the caller was
#: answered.
Havoc: TypeAlias = Callable[[GroupUnderFault, random.Random], Callable[[], object]]

#: A command executes some thousands of lines of wsm on a rank; a restored one no more.
_LINES = 12_000
_LONGEST_S = 0.15
_SIGNALS = (signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGINT, signal.SIGHUP)


def any_line(chance: random.Random) -> int:
    """Return the number of a line, more often an early one: later ones may never be reached."""
    return int(_LINES ** chance.uniform(0.0, 1.0))


def let_go(group: GroupUnderFault, *faults: Fault) -> None:
    """Let victims that stand still go on, or die; withdraw orders whose turn never came."""
    for fault in faults:
        fired = group.fired(fault)
        group.orders.withdraw(fault.victim)
        if fired is not None and fault.act in (Act.STOP, Act.FREEZE) and group.await_standing(fired.pid):
            send([fired.pid], signal.SIGCONT if fault.act is Act.STOP else signal.SIGKILL)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes, as close to each other as can be; who is gone is left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def later(chance: random.Random, strike: Callable[[], object]) -> Callable[[], None]:
    """Strike after a while, in a thread; return what waits for it."""
    timer = threading.Timer(chance.uniform(0.0, _LONGEST_S), strike)
    timer.daemon = True
    timer.start()
    return timer.join


def _at_once(count: int | None, *numbers: signal.Signals) -> Havoc:
    def begin(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
        pids = group.supervisor.pids()
        victims = chance.sample(pids, len(pids) if count is None else count)
        return later(chance, lambda: send(victims, chance.choice(numbers)))

    return begin


def _stand(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
    """Stop some, or all, and let them go on after the caller was answered, replaced or not."""
    pids = group.supervisor.pids()
    victims = chance.sample(pids, chance.randint(1, len(pids)))
    wait = later(chance, lambda: send(victims, signal.SIGSTOP))

    def afterwards() -> None:
        wait()
        later(chance, lambda: send(victims, signal.SIGCONT))()

    return afterwards


def _two_lines(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
    faults = [
        Fault(victim, "line", chance.choice((Act.KILL, Act.FREEZE)), any_line(chance))
        for victim in chance.sample(group.victims, 2)
    ]
    for fault in faults:
        group.arm(fault)
    return lambda: let_go(group, *faults)


def _while_restored(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
    """Kill one, and then one more, at a line of its own, in the epoch that restores the group."""
    mark = group.mark()
    first = Fault(chance.choice(group.victims), "line", Act.KILL, any_line(chance))
    second = Fault(
        chance.choice(group.victims),
        "line",
        chance.choice((Act.KILL, Act.KILL, Act.FREEZE)),
        any_line(chance),
    )
    group.arm(first)

    def afterwards() -> None:
        if group.fired(first) is None:
            group.orders.withdraw(first.victim)
            return
        group.arm(second)
        deadline = time.monotonic() + 60.0
        while group.fired(second) is None and time.monotonic() < deadline:
            if group.mark().recoveries > mark.recoveries:
                break
            time.sleep(0.01)
        let_go(group, second)

    return afterwards


def _without(kind: int, now: Callable[[int], int]) -> Havoc:
    """Give one no more of a resource than it has now, until the caller was answered."""

    def begin(group: GroupUnderFault, chance: random.Random) -> Callable[[], object]:
        pid = chance.choice(group.supervisor.pids())
        before = resource.prlimit(pid, kind)
        wait = later(chance, lambda: _limit(pid, kind, (now(pid), before[1])))

        def afterwards() -> None:
            wait()
            _limit(pid, kind, before)

        return afterwards

    return begin


def _limit(pid: int, kind: int, limits: tuple[int, int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended over it, and another one takes its place
        resource.prlimit(pid, kind, limits)


def _descriptors(pid: int) -> int:
    return max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1


def _address_space(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


KINDS: dict[str, Havoc] = {
    "two": _at_once(2, signal.SIGKILL),
    "all": _at_once(None, signal.SIGKILL),
    "signal": _at_once(1, *_SIGNALS),
    "stand": _stand,
    "two-lines": _two_lines,
    "while-restored": _while_restored,
    "no-descriptors": _without(resource.RLIMIT_NOFILE, _descriptors),
    "no-memory": _without(resource.RLIMIT_AS, _address_space),
    "no-file-size": _without(resource.RLIMIT_FSIZE, lambda _pid: 0),
}
