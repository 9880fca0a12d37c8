"""Plays cases in which a disk, or shared memory, is full.

Each runs in a process with mounts of its own (``unshare --mount``), so that ``/dev/shm`` itself can be made
small. Where the kernel does not allow that, only the cases with a limit on file sizes are there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from functools import lru_cache

from campaign.case import Case
from campaign.environment import victims_environment
from campaign.result import Result

#: What is played where mounts are possible; the words are those of :mod:`campaign.storage_process`.
MOUNTED = ("disk:publish", "disk:journals", "shared_memory:start", "shared_memory:serving")
LIMITED = ("limit:publish", "limit:start")

_LIMIT_S = 180.0


def cases(kind: str, ranks: int) -> list[Case]:
    """Name the cases that are possible on this machine."""
    possible = (*LIMITED, *(MOUNTED if own_mounts() else ()))
    return [Case(kind, ranks, "storage", what) for what in possible]


def play(case: Case) -> Result:
    """Play one case, in a process and on a group of its own."""
    began = time.monotonic()
    own = own_mounts() if case.what in MOUNTED else ()
    played = subprocess.run(  # noqa: S603 - our own module under our own interpreter
        [*own, sys.executable, "-m", "campaign.storage_process", str(case)],
        check=False,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env=victims_environment(),
    )
    lines = played.stdout.splitlines()
    if played.returncode or not lines:
        problem = f"its process ended with {played.returncode}: {played.stderr[-800:]}"
        result = Result(str(case), "failed", problems=[problem])
    else:
        result = Result.from_line(lines[-1])
    result.seconds = time.monotonic() - began
    return result


@lru_cache(maxsize=1)
def own_mounts() -> tuple[str, ...]:
    """Return what gives a command mounts of its own here; empty where the kernel allows none."""
    tool = shutil.which("unshare")
    for options in (("--mount",), ("--user", "--map-root-user", "--mount")):
        if tool is None:
            break
        probe = [tool, *options, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if subprocess.run(probe, check=False, stderr=subprocess.DEVNULL).returncode == 0:  # noqa: S603 - two fixed tools
            return (tool, *options)
    return ()
