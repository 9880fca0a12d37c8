"""Where the processes of one run of a group meet: a private directory beside the group's segment.

It holds the configuration that every rank reads, the rendezvous of the process groups, the bells, each
rank's log, and the snapshots where no other place was configured. Its name follows from the group's,
so an operator who looks for a hung rank's log finds it. Only the owner of the segment makes and removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wsm.signals.layout import segment_path
from wsm.status.facts import CacheProcess

CONFIG_FILE: Final = "config.json"
RENDEZVOUS_DIRECTORY: Final = "rendezvous"
SNAPSHOT_DIRECTORY: Final = "snapshots"

#: Bytes of a log after which its older half goes: it lies in memory, and a rank may live for weeks.
LOG_BYTES: Final = 1 << 20

_TAIL_BYTES = 16 * 1024
#: Logs of replaced processes that are kept per rank.
_KEPT_LOGS = 8


def run_directory_path(name: str, directory: str | Path | None = None) -> Path:
    """Return the run directory of the group `name`."""
    path = segment_path(name, directory)
    return path.with_name(f"{path.name}.run")


def log_path(run_directory: Path, rank: int) -> Path:
    """Return where the standard error of a rank goes, or that of the KV-cache process."""
    return run_directory / f"{_stem(rank)}.log"


def rotate_log(run_directory: Path, rank: int, epoch: int) -> None:
    """Keep the log of a rank that is replaced in `epoch`: ``rankR.before-epochE.log``; the last few stay."""
    path = log_path(run_directory, rank)
    if not path.exists():
        return
    path.rename(_free_name(run_directory, f"{_stem(rank)}.before-epoch{epoch}"))
    kept = sorted(
        run_directory.glob(f"{_stem(rank)}.before-epoch*.log"), key=lambda old: old.stat().st_mtime_ns
    )
    for old in kept[:-_KEPT_LOGS]:
        old.unlink()


def bound_log(run_directory: Path, rank: int) -> None:
    """Cut a log that has outgrown :data:`LOG_BYTES` to its newer half; its process goes on appending to it.

    Lines that it writes in just that moment may come before the others, or be lost.
    """
    with log_path(run_directory, rank).open("a+b") as log:  # the same file, even if it is renamed meanwhile
        if os.fstat(log.fileno()).st_size <= LOG_BYTES:
            return
        log.seek(-LOG_BYTES // 2, os.SEEK_END)
        newer = log.read()
        log.truncate(0)
        log.write(b"(older lines were dropped here)\n" + newer[newer.find(b"\n") + 1 :])


def keep_logs_only(run_directory: Path) -> None:
    """Remove what is of no use once the group has given up: everything but logs and journals."""
    for path in run_directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix not in (".log", ".ndjson"):
            path.unlink()


def make_run_directory(path: Path, config: Mapping[str, Any]) -> None:
    """Make the directory with the configuration in it; what a dead run left there goes first."""
    remove_run_directory(path)
    path.mkdir(0o700)
    try:
        (path / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
    except BaseException:
        remove_run_directory(path)
        raise


def remove_run_directory(path: Path) -> None:
    """Remove the directory and everything in it. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def log_tail(run_directory: Path, rank: int, lines: int = 15) -> str:
    """Return the last lines that a rank has logged."""
    path = log_path(run_directory, rank)
    if not path.exists():
        return ""
    text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    return "\n".join(text.rstrip().splitlines()[-lines:])


def _stem(rank: int) -> str:
    return "kv-cache" if isinstance(rank, CacheProcess) else f"rank{rank}"


def _free_name(run_directory: Path, stem: str) -> Path:
    """Return a name that is not taken: a rank may be replaced several times in one epoch."""
    names = (f"{stem}{suffix}.log" for suffix in ("", *(f".{count}" for count in range(2, 10_000))))
    return next(run_directory / name for name in names if not (run_directory / name).exists())
