"""A participant runs out of descriptors or memory under a command; afterwards it has them again."""

from __future__ import annotations

import contextlib
import random
import resource
from collections.abc import Callable
from pathlib import Path

from campaign.deaths_midway import Havoc, later
from campaign.group import GroupUnderFault


def _without(kind: int, now: Callable[[int], int]) -> Havoc:
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
    "no-descriptors": _without(resource.RLIMIT_NOFILE, _descriptors),
    "no-memory": _without(resource.RLIMIT_AS, _address_space),
    "no-file-size": _without(resource.RLIMIT_FSIZE, lambda _pid: 0),
}
