"""``python -m campaign endurance``: many cycles of commands, and what has grown by the end of them.

Two groups: ``memory`` (real processes and segment, an engine in plain memory) and ``gloo`` (real paddle
weights; communicators stay up). Each cycle clears the group, loads one of two versions, and the other one
under a hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from campaign.environment import STEPS_VARIABLE
from campaign.group import GroupUnderFault
from examples.rollout.run_directory import LOG_BYTES, run_directory_path
from wsm import log
from wsm.ending import Ending, SignalReceived
from wsm.shared_directory import private_directory

_SAMPLES = 100

#: Seconds in which what is only open for a moment is closed again.
_SETTLES_S = 10.0


@dataclass(frozen=True)
class Footprint:
    """What all processes of a group, its owner included, hold together at one moment.

    Parameters
    ----------
    rss : int
        Resident bytes, the sum over the processes.
    fds, threads : int
        Descriptors and threads, the same sum.
    shared_files, shared_bytes : int
        What lies in ``/dev/shm`` under the group's name and in its run directory, but for logs.
    logs, log_bytes : int
        The logs in that directory; each may grow up to a bound. Journals lie elsewhere.
    """

    rss: int
    fds: int
    threads: int
    shared_files: int
    shared_bytes: int
    logs: int
    log_bytes: int


@dataclass(frozen=True)
class Endurance:
    """The means over the first and the last tenth of a run; the first of it all warms up and is left out."""

    kind: str
    cycles: int
    seconds: float
    first: Footprint
    last: Footprint

    @property
    def grown(self) -> list[str]:
        """What has grown: any descriptor, thread or file of shared memory, and memory by more than 5 %.

        Memory because allocators settle late; objects are not counted. Logs only where they are not bounded.
        """
        found = [
            f"{name}: {getattr(self.first, name)} to {getattr(self.last, name)}"
            for name in ("fds", "threads", "shared_files", "shared_bytes")
            if getattr(self.last, name) > getattr(self.first, name)
        ]
        if self.last.log_bytes > self.last.logs * LOG_BYTES * 1.1:  # they are cut once a second
            found.append(f"log_bytes: {self.first.log_bytes} to {self.last.log_bytes}")
        if self.last.rss > self.first.rss * 1.05:
            found.append(f"rss: {self.first.rss} to {self.last.rss} bytes")
        return found


def endure(kind: str, cycles: int, ranks: int = 2, *, ending: Ending | None = None) -> Endurance:
    """Run cycles; blocks.

    Raises
    ------
    RuntimeError
        If a command of the run fails.
    wsm.ending.SignalReceived
        If `ending` was asked for; the group is gone then.
    """
    os.environ[STEPS_VARIABLE] = "no"
    began = time.monotonic()
    try:
        with (
            GroupUnderFault(kind, ranks, shut_down_groups=False, journals=False, load=False) as group,
            (ending or Ending()).interrupting(),
        ):
            group.start()
            versions = (group.published, group.publish())
            warm_up = max(cycles // 10, 20)
            samples: list[Footprint] = []
            for cycle in range(-warm_up, cycles):
                for operation, version in (
                    *(("clear", None), ("update", versions[cycle % 2])),
                    *(("hold", None), ("in_place", versions[(cycle + 1) % 2]), ("release", None)),
                ):
                    answer = group.command(operation, version, wait_s=1.0)  # the keeper may look just now
                    if answer.receipt is None:
                        raise RuntimeError(f"{operation} of cycle {cycle} failed: {answer.said}")
                if cycle >= 0 and cycle % max(cycles // _SAMPLES, 1) == 0:
                    samples.append(_footprint(group))
            tenth = max(len(samples) // 10, 1)
            first, last, seconds = _mean(samples[:tenth]), _mean(samples[-tenth:]), time.monotonic() - began
            run = Endurance(kind, cycles, seconds, first, last)
            late = time.monotonic() + _SETTLES_S
            while run.grown and time.monotonic() < late:  # what a keeper had open in its look is closed then
                time.sleep(0.1)
                run = replace(run, last=_footprint(group))
            return run
    finally:
        del os.environ[STEPS_VARIABLE]


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; return 0 if nothing grew."""
    parser = argparse.ArgumentParser(prog="python -m campaign endurance", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--kind", choices=("memory", "gloo"), action="append", help="default: both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    asked = parser.parse_args(arguments)
    log.configure(level="error")
    ending = Ending()
    try:
        with ending.heeded():
            runs = [endure(kind, asked.cycles, ending=ending) for kind in asked.kind or ("memory", "gloo")]
    except SignalReceived as received:
        return received.exit_code
    for run in runs:
        sys.stdout.write(_text(run))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
    return 1 if any(run.grown for run in runs) else 0


def _text(run: Endurance) -> str:
    first, last = run.first, run.last
    rows = [
        ("resident MiB", f"{first.rss / 2**20:.1f}", f"{last.rss / 2**20:.1f}"),
        ("descriptors", str(first.fds), str(last.fds)),
        ("threads", str(first.threads), str(last.threads)),
        ("files in /dev/shm", str(first.shared_files), str(last.shared_files)),
        ("bytes in /dev/shm", str(first.shared_bytes), str(last.shared_bytes)),
        ("logs there", str(first.logs), str(last.logs)),
        ("bytes of logs", str(first.log_bytes), str(last.log_bytes)),
    ]
    lines = [
        f"{run.kind}: {run.cycles} cycles of clear, update, and an update under a hold, {run.seconds:.0f} s"
    ]
    lines += [f"  {'':20}{'first tenth':>14}{'last tenth':>14}"]
    lines += [f"  {name:20}{one:>14}{other:>14}" for name, one, other in rows]
    lines.append(f"  {'grown: ' + '; '.join(run.grown) if run.grown else 'nothing grew'}")
    return "\n".join(lines) + "\n"


def _footprint(group: GroupUnderFault) -> Footprint:
    rss = fds = threads = 0
    for pid in (os.getpid(), *group.supervisor.pids()):
        process = psutil.Process(pid)
        with process.oneshot():
            rss += process.memory_info().rss
            fds += process.num_fds()
            threads += process.num_threads()
    name = group.config.group.name
    mine = [*private_directory().glob(f"wsm.{name}*"), *run_directory_path(name).rglob("*")]
    files = [path for path in mine if path.is_file()]
    logs = [path for path in files if path.suffix == ".log"]
    sizes = {path: path.stat().st_size for path in files}
    log_bytes = sum(sizes[path] for path in logs)
    shared = sum(sizes.values()) - log_bytes
    return Footprint(rss, fds, threads, len(files) - len(logs), shared, len(logs), log_bytes)


def _mean(samples: Sequence[Footprint]) -> Footprint:
    """Means, rounded; of descriptors and threads the least, since a transaction's own come and go.

    Of logs the most: they shrink where they are cut.
    """
    count = len(samples)
    return Footprint(
        rss=round(sum(sample.rss for sample in samples) / count),
        fds=min(sample.fds for sample in samples),
        threads=min(sample.threads for sample in samples),
        shared_files=min(sample.shared_files for sample in samples),
        shared_bytes=min(sample.shared_bytes for sample in samples),
        logs=min(sample.logs for sample in samples),
        log_bytes=max(sample.log_bytes for sample in samples),
    )
