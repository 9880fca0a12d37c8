"""What outlives a group that was ended: names in shared memory, files, processes."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import psutil

from campaign.environment import DIRECTORY_VARIABLE
from wsm.shared_directory import private_directory

_PATIENCE_S = 5.0
_LOOK_S = 0.02
_TOOLS = ("resource_tracker", "forkserver")


def left_by(name: str, directory: Path, *, patience_s: float = _PATIENCE_S) -> list[str]:
    """Return what the ended group `name` has left; what is just going is waited for, for a few seconds."""
    deadline = time.monotonic() + patience_s
    while (found := _look(name, directory)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def remove_leftovers(name: str) -> None:
    """Remove what :func:`left_by` found in shared memory, so that one case does not spoil the next."""
    for path in private_directory().glob(f"wsm.{name}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_batch(pid: int) -> None:
    """Remove what a batch process that was ended or killed in the middle of a case has left."""
    remove_leftovers(f"campaign-{pid}-")
    for path in Path(tempfile.gettempdir()).glob(f"{directory_prefix(pid)}*"):
        shutil.rmtree(path, ignore_errors=True)


def directory_prefix(pid: int) -> str:
    """Return how the names of directories begin that a batch process makes."""
    return f"wsm-campaign-{pid}-"


def _look(name: str, directory: Path) -> list[str]:
    found = [f"shared memory: {path.name}" for path in private_directory().iterdir() if name in path.name]
    found += [f"snapshots: {path.name}" for path in (directory / "snapshots" / "versions").glob(".staging-*")]
    children = psutil.Process().children(recursive=True)
    found += [process for child in children if (process := _describe(child, name, directory))]
    return sorted(found)


def _describe(child: psutil.Process, name: str, directory: Path) -> str | None:
    """Name a process of the group; None for any other."""
    try:
        command = " ".join(child.cmdline())
        if any(tool in command for tool in _TOOLS) or not _is_of(child, command, name, directory):
            return None
        return f"process {child.pid}: {child.status()}"
    except psutil.NoSuchProcess:
        return None


def _is_of(child: psutil.Process, command: str, name: str, directory: Path) -> bool:
    """Whether a process was started for the group; a zombie, whose life cannot be read, counts as one."""
    try:
        where = child.environ().get(DIRECTORY_VARIABLE, "")
    except psutil.Error:
        return True
    return name in command or where == str(directory)
