"""One rank of a small group, as a process of its own: python rank_process.py SETTINGS_JSON RANK.

The loop is the one that the documentation shows. A step is a real rendezvous: whoever is inside step n
stays until every rank's step word shows that it has entered it. Each step writes one line: its number,
the version that the permit names, and the digest of the bytes that the rank then holds.

A test steers a rank by files in the group's directory: ``orders/RANK.POINT`` makes the rank raise, or
wait there, the next time it passes that point of its engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import wsm
from wsm.actions.backends.memory import HostMemory
from wsm.actions.measuring import resident_digest
from wsm.actions.surfaces import GroupKind
from wsm.config import config_from_mapping
from wsm.signals.liveness import Life, Liveness
from wsm.states.words import StepWord, steps_ahead
from wsm.strategies.applier.memory_target import MemoryTarget, StagedMemory
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryKVCache, InMemoryMemory, InMemoryRequests, InMemoryRunner
from wsm.worker.errors import NotServingError

PATIENCE_S = 40.0
SPECS = (
    TensorSpec("embedding", "F32", (32, 16)),
    TensorSpec("layer.weight", "BF16", (16, 16)),
    TensorSpec("layer.bias", "F32", (16,)),
)


class DeadlockError(Exception):
    """Nobody else came."""


class Orders:
    """What the test wants this rank to do at some point."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory / "orders"
        self._rank = rank

    def passes(self, point: str) -> None:
        """Obey the order for this point, if there is one.

        It is `raise`, `raise once`, `exhaust`, `hold`, or `hold and raise`: that, once it may go on.
        """
        path = self._directory / f"{self._rank}.{point}"
        if not path.exists():  # which takes no descriptor
            return
        with contextlib.suppress(FileNotFoundError):
            order = path.read_text()
            if order == "raise once":
                path.unlink()
            if order == "exhaust":
                raise MemoryError
            if order.startswith("raise"):
                raise OSError(f"the test wants {point} to fail on rank {self._rank}: 失败")
            (self._directory / f"{self._rank}.{point}.reached").touch()
            until(lambda: not path.exists(), f"the test to let {point} go on")
            if order == "hold and raise":
                raise OSError(f"connection closed by peer, in {point}")


def until(question: Callable[[], object], what: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, 0.00005
    while not question():
        if time.monotonic() > deadline:
            raise DeadlockError(what)
        time.sleep(pause)
        pause = min(pause * 2, 0.002)


class SteeredClock(wsm.clock.SystemClock):
    """The host's clock, some time later if the test says so."""

    def __init__(self) -> None:
        self.later_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.later_ns


class SteeredWeights(MemoryTarget):
    def __init__(self, orders: Orders) -> None:
        super().__init__(SPECS)
        self._orders = orders

    def writable(self, name: str) -> memoryview:
        self._orders.passes("write")
        return super().writable(name)

    def stage(self) -> StagedMemory:
        return SteeredStaging(self._orders, self._specs, self._memory)

    def release(self) -> int:
        self._orders.passes("release")
        return super().release()


class SteeredStaging(StagedMemory):
    def __init__(self, orders: Orders, *arguments) -> None:
        super().__init__(*arguments)
        self._orders = orders

    def writable(self, name: str) -> memoryview:
        self._orders.passes("stage")
        return super().writable(name)

    def flip(self) -> None:
        self._orders.passes("flip")
        super().flip()


class ScantMemory(InMemoryMemory):
    """A host that has so many bytes left, and whose ranks share them."""

    shared_by_ranks = True

    def __init__(self, runner: InMemoryRunner, available: int) -> None:
        super().__init__(runner)
        self._available = available

    def available_bytes(self) -> int:
        return self._available


class SteeredKVCache(InMemoryKVCache):
    def __init__(self, orders: Orders) -> None:
        super().__init__()
        self._orders = orders

    def rebuild(self) -> int:
        self._orders.passes("rebuild")
        return super().rebuild()

    def release(self) -> int:
        self._orders.passes("release_kv")
        return super().release()


class SteeredRequests(InMemoryRequests):
    def __init__(self, orders: Orders) -> None:
        super().__init__()
        self._orders = orders

    def stop_admitting(self) -> None:
        self._orders.passes("stop_admitting")
        super().stop_admitting()

    def abort_all(self) -> int:
        self._orders.passes("settle")
        return super().abort_all()

    def resume_admitting(self) -> None:
        self._orders.passes("resume_admitting")
        super().resume_admitting()


class RendezvousGroups:
    """Communicators that are nothing but their rendezvous: nobody gets out before all are in."""

    def __init__(self, directory: Path, rank: int, ranks: int, orders: Orders) -> None:
        self._directory, self._rank, self._ranks, self._orders = directory / "meetings", rank, ranks, orders
        self._alive = False
        self._shut_downs = 0

    def kinds(self) -> list[GroupKind]:
        return [GroupKind.TP]

    def alive(self, kind: GroupKind) -> bool:
        return self._alive

    def barrier(self, kind: GroupKind) -> None:
        pass  # a rendezvous by itself is all that they do

    def shut_down(self, kind: GroupKind) -> None:
        if self._alive:
            self._shut_downs += 1
            self._meet(f"shut-down-{self._shut_downs}")
        self._alive = False

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:
        self._orders.passes("restart")
        self._meet(incarnation.replace("/", "_"))
        self._alive = True

    def _meet(self, name: str) -> None:
        (self._directory / f"{name}.{self._rank}").touch()
        everybody = [self._directory / f"{name}.{rank}" for rank in range(self._ranks)]
        until(lambda: all(path.exists() for path in everybody), f"everybody in {name}")


class Rank:
    def __init__(self, settings: dict, rank: int) -> None:
        directory = Path(settings["directory"])
        self.rank, self.settings = rank, settings
        self.orders = Orders(directory, rank)
        self.orders.passes("start")
        self.runner = InMemoryRunner(SPECS)
        self.runner.weights = SteeredWeights(self.orders)
        self.runner.kv_cache = SteeredKVCache(self.orders)
        self.runner.requests = SteeredRequests(self.orders)
        config = config_from_mapping(settings["config"])
        if config.shut_down_groups:
            self.runner.groups = RendezvousGroups(directory, rank, config.ranks, self.orders)
        if str(rank) in settings.get("available_bytes", {}):  # JSON knows no other keys
            self.runner.memory = ScantMemory(self.runner, settings["available_bytes"][str(rank)])
        if settings.get("measures"):
            self.runner.memory = HostMemory()
        if rank in settings.get("without_kv", ()):
            self.runner.kv_cache = None
        self.clock = SteeredClock()
        self.worker = wsm.Worker(config, self.runner, rank=rank, clock=self.clock, directory=directory)
        if settings.get("steps_before"):  # a rank that has stepped for weeks counts on from there
            self.worker._loop.stepped_to(settings["steps_before"])
        segment = self.worker._attachment.segment
        self._steps = [(segment.words, index) for index in segment.layout.step[: config.ranks]]
        self._liveness = Liveness(segment)
        self._log: TextIO = (directory / f"steps.{rank}").open("a", buffering=1)
        self._told: deque[str] = deque()
        self._random = random.Random(rank)  # noqa: S311 - it decides when a step begins, nothing secret
        self._resting = False
        self._rings = 0
        self.stepped = 0

    def step(self) -> None:
        self.orders.passes("before_step")
        with self.worker.step() as permit:
            epoch = StepWord.unpack(permit.word).epoch
            self._log.write(f"{permit.step} {permit.version} {self.digest()} {epoch}\n")
            self.orders.passes("step")
            until(
                lambda: self._everybody_entered(epoch, permit.step) or self._is_peer_gone(),
                f"everybody in step {permit.step}",
            )
            if not self._everybody_entered(epoch, permit.step):
                raise OSError(f"a peer is gone from step {permit.step}, as a collective would say")
            self.runner.requests.advance()
            permit.check()
        self.stepped += 1

    def digest(self) -> str:
        return resident_digest(self.runner.weights, lambda: None)

    def _everybody_entered(self, epoch: int, step: int) -> bool:
        found = [StepWord.unpack(words[index]) for words, index in self._steps]
        return all(word.epoch == epoch and steps_ahead(word.step, step) >= 0 for word in found)

    def _is_peer_gone(self) -> bool:
        return any(self._liveness.look(rank) is Life.DEAD for rank in range(len(self._steps)))

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        say(event="ready", rank=self.rank)
        idle = self._idle()
        stopping = False
        while not stopping:
            stopping = self._obey()
            turn = self.worker.poll(block=self.settings.get("block", False))
            if turn is wsm.HOLD:
                continue
            if turn is wsm.JOIN or self._has_work():
                self._step_and_survive()
            else:
                next(idle)
        requests = self.runner.requests
        say(
            event="ended",
            version=self.worker.version,
            weights=self.worker.weights.name,
            kv=self.worker.kv.name,
            steps=self.stepped,
            held=sorted(self.runner.weights.held()),
            finished=requests.finished,
            aborted=requests.aborted,
            admitting=requests.admitting,
        )
        self.worker.close()

    def _step_and_survive(self) -> None:
        try:
            self.step()
        except (OSError, NotServingError) as error:  # an order, which the loop of an engine may survive
            say(event="no step", error=type(error).__name__, message=str(error))

    def _has_work(self) -> bool:
        if self._resting:
            return False
        return self.runner.requests.has_work() or self._random.random() < self.settings.get("load", 0)

    def _idle(self) -> Iterator[None]:
        """Wait a little where there is no work, in the way that the settings name."""
        if self.settings.get("idle") == "selector":
            with selectors.DefaultSelector() as selector:
                selector.register(self.worker.fileno(), selectors.EVENT_READ)
                while True:
                    if selector.select(0.02):
                        self._rings += 1
                    yield
        while True:
            self.worker.wait(0.002)
            yield

    def _listen(self) -> None:
        for line in sys.stdin:
            self._told.append(line.strip())
        self._told.append("stop")

    def _obey(self) -> bool:
        while self._told:
            what, *arguments = self._told.popleft().split()
            if what == "stop":
                return True
            if what == "rest":  # begin no step from here on; those of the others are still joined
                self._resting = True
                say(event="resting")
            if what == "work":  # begin steps again
                self._resting = False
            if what == "step":  # whatever poll() said
                self._step_and_survive()
            if what == "later":
                self.clock.later_ns += int(arguments[0]) * 10**9
            if what == "lose-place":  # as a process that dies does first: POSIX locks go with any descriptor
                os.close(os.open(self.worker._attachment.segment.lock_file.path, os.O_RDONLY))
            if what == "submit":
                self.runner.requests.submit(int(arguments[0]))
            if what == "say":
                say(
                    event="state",
                    version=self.worker.version,
                    running=self.runner.requests.running,
                    waiting=self.runner.requests.waiting,
                    frozen=self.runner.requests.frozen,
                    admitting=self.runner.requests.admitting,
                    rings=self._rings,
                )
        return False


def say(**facts: object) -> None:
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


def main() -> int:
    try:
        Rank(json.loads(sys.argv[1]), int(sys.argv[2])).run()
    except Exception as error:  # noqa: BLE001 - whatever ended the rank is what the test wants to know
        say(event="died", error=type(error).__name__, message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
