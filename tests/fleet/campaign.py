"""A fleet comes from version to version while processes die: ``python -m tests.fleet.campaign RUNS SEED``.

Eight replicas with text of real weights behind them, a watcher, and a router whose clients never stop asking.
In each run a caller brings the fleet to the next version and something befalls it. Behind that the same call
must converge, and :mod:`.audit` looks at all that was answered in between.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.fleet.audit import Disturbance, broken_promises, tries_of
from tests.fleet.served_replica import ServedReplica, publish
from tests.forkserver import FOR_COMMANDS, Forked
from wsm import fleet
from wsm.strategies.trainer.retention import Retention

HERE = Path(__file__).parent
PATIENCE_S = 120.0
VERSIONS = (1, 2, 3)
ASKERS = 4


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Campaign:
    """The fleet of one campaign, and what befalls it. All of chance is drawn from `seed`."""

    def __init__(self, directory: Path, seed: int, *, replicas: int = 8) -> None:
        self.draws = random.Random(seed)  # noqa: S311 - chance that is played again
        self.store = directory / "store"
        for version in VERSIONS:
            publish(self.store, version, retain=Retention(keep=len(VERSIONS)))
        self.listed, self.routable, self.log = (
            directory / name for name in ("replicas.json", "routable", "tries")
        )
        self.disturbances: list[Disturbance] = []
        self.counts: Counter[str] = Counter()
        self._undo = contextlib.ExitStack()
        self.replicas: list[ServedReplica] = []
        self._directory = directory
        self._count = replicas

    def start(self) -> None:
        """Bring up replicas, watcher and router; behind it all serve the second version."""
        for number in range(self._count):
            port = free_port()
            served = ServedReplica(
                self._directory / f"replica{number}",
                self.store,
                *("--fleet", self.store, "--upstream", f"http://127.0.0.1:{port}"),
                engine=(HERE / "text_rank.py", port),
            )
            self._undo.callback(served.close)
            self.replicas.append(served)
        self.listed.write_text(json.dumps([each.url for each in self.replicas]))
        self._urls = ",".join(each.url for each in self.replicas)
        assert self.converge(VERSIONS[0]).exit_code == 0
        self.now = VERSIONS[1]
        counts = (HERE / "killed_caller.py", self.store, self.now, self._urls)
        said, _ = FOR_COMMANDS.start(*counts, stderr=None).communicate()
        self._lines, exit_code = map(int, said.split())
        assert exit_code == 0
        self._start("wsm", "fleet", "watch", *self._named(), "--every", "0.5", "--routable", self.routable)
        self._start(HERE / "router.py", self.routable, self.log, ASKERS)

    def _named(self) -> tuple[object, ...]:
        return "--store", self.store, "--replicas", self.listed

    def _start(self, program: object, *arguments: object) -> Forked:
        named = ["-m", program] if program == "wsm" else [program]
        process = FOR_COMMANDS.start(*named, *arguments, stdout=subprocess.DEVNULL)
        self._undo.callback(process.close)
        return process

    def close(self) -> None:
        self._undo.close()

    # -- what befalls it ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _disturbed(self, served: ServedReplica) -> Iterator[None]:
        began = time.time()
        try:
            yield
        finally:
            self.disturbances.append(Disturbance(served.url, began, time.time()))

    def _after(self, most_s: float) -> None:
        threading.Event().wait(self.draws.uniform(0.0, most_s))

    def kill_servers(self) -> None:
        for served in self.draws.sample(self.replicas, 2):
            with self._disturbed(served):
                served.kill_server()
                self._after(1.0)
                served.restart_server()

    def freeze_server(self) -> None:
        served = self.draws.choice(self.replicas)
        with self._disturbed(served):
            served.freeze()
            self._after(3.0)
            served.thaw()

    def restore_old_version(self) -> None:
        served = self.draws.choice(self.replicas)
        with self._disturbed(served):
            served.restart_group(self.draws.choice(VERSIONS))

    def call_for_another(self) -> None:
        self.calls(self.draws.choice(VERSIONS)).wait(PATIENCE_S)

    def nothing(self) -> None:
        """Let the caller alone be killed, or nothing."""

    def calls(self, version: int, *options: object) -> Forked:
        return self._start("wsm", "fleet", "update", version, *self._named(), "--at-a-time", 2, *options)

    def killed_caller(self, version: int) -> Forked:
        line = self.draws.randrange(1, self._lines)
        return self._start(HERE / "killed_caller.py", self.store, version, self._urls, line)

    # -- one run -----------------------------------------------------------------------------------

    def converge(self, version: int) -> fleet.FleetReport:
        return fleet.update(self.store, version, [each.replica for each in self.replicas], at_a_time=2)

    def run(self, number: int) -> list[str]:
        """Bring the fleet on, let something befall it, and return the promises that were broken."""
        self.now = VERSIONS[(VERSIONS.index(self.now) + 1) % len(VERSIONS)]
        befalls: Callable[[], None] = (
            self.nothing,
            self.kill_servers,
            self.freeze_server,
            self.restore_old_version,
            self.call_for_another,
        )[number % 5]
        options = ("--strict",) if self.draws.random() < 0.2 else ()
        starts = partial(self.killed_caller, self.now) if befalls == self.nothing else None
        caller = starts() if starts else self.calls(self.now, *options)
        self._after(2.0)
        befalls()
        with contextlib.suppress(subprocess.TimeoutExpired):
            caller.wait(PATIENCE_S)
        self.counts[f"{befalls.__name__}: the caller ended with {caller.returncode}"] += 1
        report = self.converge(self.now)
        looks = max(row.looks for row in report.rows)
        self.counts[f"{befalls.__name__}: {looks} looks"] += 1
        if report.exit_code or not all(row.version == str(self.now) for row in report.rows):
            told = "; ".join(f"{row.replica.url} {row.version} {row.code}" for row in report.rows)
            return [f"the call behind {befalls.__name__} ended with {report.exit_code}: {told}"]
        return []

    def audit(self) -> list[str]:
        tries = tries_of(self.log)
        self.counts.update(f"tries answered {each.status}" for each in tries)
        return broken_promises(tries, self.disturbances, self.store)


def play(directory: Path, runs: int, seed: int, **size: Any) -> tuple[list[str], Counter[str]]:
    """Return the promises that were broken in so many runs, and what was counted."""
    campaign = Campaign(directory, seed, **size)
    broken: list[str] = []
    try:
        campaign.start()
        for number in range(runs):
            broken += [f"run {number}: {each}" for each in campaign.run(number)]
            print(f"run {number} of {runs}: {len(broken)} broken")  # noqa: T201 - progress
        broken += campaign.audit()
    finally:
        campaign.close()
    return broken, campaign.counts


def main(runs: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        broken, counts = play(Path(directory), runs, seed)
    for what, count in sorted(counts.items()):
        print(f"{count:7} {what}")  # noqa: T201 - what it is called for
    print(*broken, f"{len(broken)} promises broken in {runs} runs", sep="\n")  # noqa: T201 - the same
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
