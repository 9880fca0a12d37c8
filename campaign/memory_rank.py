"""A rank of a ``memory`` group: real worker, segment and snapshots around an engine in plain memory.

Run by :class:`examples.rollout.supervisor.RolloutSupervisor` in the place of a paddle rank. A step is a real
rendezvous: a rank inside step n leaves it once every rank's step word shows that it has entered it.
Each step writes one record: epoch, step, the version of the permit, a digest of all bytes that this rank
holds, and of which version the KV blocks are that the step could read. That is what the campaign holds
against the version that should have made the step.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import xxhash

from campaign.environment import DIRECTORY_VARIABLE, STEPS_VARIABLE
from campaign.points import Trap, trap_rank
from campaign.versioned_cache import VersionedCache
from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.sharding import shard_specs
from examples.rollout.run_directory import CONFIG_FILE
from wsm import log
from wsm.actions.backends.memory import HostMemory
from wsm.actions.options import PlanOptions
from wsm.signals.liveness import Life, Liveness
from wsm.signals.segment import Segment
from wsm.states.vocabulary import KVPolicy
from wsm.states.words import CommandWord, StepWord, steps_ahead
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.testing import InMemoryRunner
from wsm.worker import HOLD, JOIN, Worker

#: One step: epoch, step, version, digest of what is held, and a version other than its own that computed idle
#: blocks, or blocks of running requests; its own where there is none.
RECORD = struct.Struct("<QQqQqq")

_PR_SET_PDEATHSIG = 1
_STEP_S = 0.001
_IDLE_S = 0.001
_REQUEST_STEPS = 20


class PeerGoneError(Exception):
    """A rank died, or left the epoch, while others waited for it inside a step; Gloo would say the same."""


class Meeting:
    """Holds the ranks in the same step, as a collective in it would."""

    def __init__(self, config: RolloutConfig, rank: int) -> None:
        self._segment = Segment.attach(config.group.name)
        self._liveness = Liveness(self._segment)
        self._rank = rank
        self._peers = [peer for peer in range(config.group.ranks) if peer != rank]

    def meet(self, mine: StepWord) -> None:
        """Wait until every rank has entered the step.

        Raises
        ------
        PeerGoneError
            If one never will.
        """
        words, layout = self._segment.words, self._segment.layout
        for peer in self._peers:
            looks = 0
            while not _entered(StepWord.unpack(words[layout.step[peer]]), mine):
                looks += 1
                if looks % 64 == 0:
                    self._check(peer, mine.epoch)
                os.sched_yield()
                if looks > 256:
                    time.sleep(0.0005)

    def _check(self, peer: int, epoch: int) -> None:
        command = CommandWord.unpack(self._segment.words[self._segment.layout.command])
        if self._liveness.look(peer) is Life.DEAD or command.epoch != epoch:
            raise PeerGoneError(f"rank {peer} will not come to step of epoch {epoch}")


class StepRecords:
    """The file of a rank's steps; appended to across processes."""

    def __init__(self, directory: Path, rank: int, blocks: VersionedCache) -> None:
        self._blocks = blocks
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / f"rank{rank}.steps").open("ab", buffering=0)

    def write(self, word: StepWord, version: int, target: MemoryTarget) -> None:
        """Write down what a step was made with."""
        kept = self._blocks.foreign(version)
        self._blocks.compute(version)
        self._file.write(RECORD.pack(word.epoch, word.step, version, held_digest(target), *kept))


def number_of(label: str) -> int:
    """Return the number of a version in records; of one that wsm named, that of its command, negative."""
    return int(label) if label.isdecimal() else -int(label.rpartition(".")[2])


def held_digest(target: MemoryTarget) -> int:
    """Digest all bytes that are held, in the order of their names."""
    digest = xxhash.xxh3_64()
    for name in sorted(target.held()):
        digest.update(target.readable(name))
    return digest.intdigest()


def read_records(path: Path) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Read the fields of every step's record; a torn last one is a killed process' own."""
    data = path.read_bytes() if path.exists() else b""
    yield from RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])


@contextlib.contextmanager
def _surviving() -> Iterator[None]:
    """Outlive a step that a lost peer has broken, as the reference rank does: the next epoch is joined."""
    try:
        yield
    except PeerGoneError:
        traceback.print_exc()


def serve(
    worker: Worker,
    runner: InMemoryRunner,
    meeting: Meeting,
    records: StepRecords | None,
    trap: Trap,
) -> None:
    """Run the loop of the documentation: rank 0 always has work, the others join."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    while not stop:
        turn = worker.poll()
        if turn is HOLD:
            continue
        if worker.rank == 0 and not runner.requests.waiting:
            runner.requests.submit(_REQUEST_STEPS)
        if turn is not JOIN and (worker.rank or not runner.requests.has_work()):
            worker.wait(_IDLE_S)
            continue
        with _surviving(), worker.step() as permit:
            word = StepWord.unpack(permit.word)
            meeting.meet(word)
            trap.passes("step")
            runner.requests.advance()
            if records is not None:
                records.write(word, number_of(permit.version), runner.weights)
        if worker.rank == 0:
            time.sleep(_STEP_S)


def main(arguments: list[str]) -> None:
    """Run one rank: RUN_DIRECTORY RANK SUPERVISOR_PID."""
    run_directory, rank = Path(arguments[0]), int(arguments[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(arguments[2]):
        sys.exit("the supervisor died before this rank began")
    config = rollout_config_from_mapping(
        json.loads((run_directory / CONFIG_FILE).read_text(encoding="utf-8"))
    )
    log.configure(level="warning")
    trap = trap_rank(rank)
    runner = InMemoryRunner(shard_specs(config.engine.shape, rank, config.group.ranks).values())
    runner.kv_cache = blocks = VersionedCache(runner.requests)
    runner.memory = HostMemory()  # what is measured is in /proc, and takes a descriptor
    options = PlanOptions.from_runner(
        runner, kv_policies=frozenset(KVPolicy), deadlines=config.group.deadlines.action_s
    )
    steps = os.environ.get(STEPS_VARIABLE)
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    with Worker(config.group, runner, rank=rank, plan_options=options, answers_engine_words=False) as worker:
        records = StepRecords(directory / "steps", rank, blocks) if steps != "no" else None
        serve(worker, runner, Meeting(config, rank), records, trap)


def _entered(peer: StepWord, mine: StepWord) -> bool:
    return peer.epoch == mine.epoch and steps_ahead(peer.step, mine.step) >= 0


if __name__ == "__main__":
    main(sys.argv[1:])
