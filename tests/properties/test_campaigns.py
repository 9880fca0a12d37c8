"""Random campaigns: no step is mixed, all ranks end alike, and the group recovers, whatever happens.

What happens: commands of all kinds to three ranks that move in any order, failing actions, ranks that stop
for a while, callers without patience, controllers that die between any two words.

One process, one thread, one manual clock: the real workers, controllers and words, in an order that a seed
decides. Whenever a controller would wait, the ranks move.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wsm
from wsm import HOLD, JOIN, InFlightPolicy, Outcome
from wsm.actions.measuring import resident_digest
from wsm.clock import ManualClock
from wsm.controller import Pending
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.group_view import GroupView
from wsm.errors import InternalError, WsmError
from wsm.journal.replay import replay
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner
from wsm.worker._group_words import GroupWords

RANKS = 3
SPECS = (TensorSpec("weight", "F32", (4, 4)), TensorSpec("bias", "F32", (4,)))
#: The first of them are played in every run of the tests.
SEEDS = [seed if seed < 15 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)]
COMMANDS = 25


class DeathOfTheController(BaseException):
    """What is left of a controller is the words."""


def content(version: int, rank: int, spec: TensorSpec) -> bytes:
    return bytes([version % 256, rank + 1]) * (spec.nbytes // 2)


def digest(version: int, rank: int) -> str:
    return shard_digest((spec, digest_of(memoryview(content(version, rank, spec)))) for spec in SPECS)


class Rank:
    """One worker and its engine; in a step until all ranks have entered it."""

    def __init__(self, campaign: Campaign, rank: int, directory: Path) -> None:
        self.campaign, self.rank = campaign, rank
        self.runner = InMemoryRunner(SPECS)
        self.worker = wsm.Worker(
            wsm.WsmConfig("campaign", RANKS),
            self.runner,
            rank=rank,
            load=self.load,
            clock=campaign.clock,
            directory=directory,
        )
        self.in_step: int | None = None
        self.permit: Any = None
        self.stopped = 0
        release = self.runner.weights.release
        self.runner.weights.release = lambda: (campaign.may_fail(), release())[1]
        rebuild = self.runner.kv_cache.rebuild
        self.runner.kv_cache.rebuild = lambda: (campaign.may_fail(), rebuild())[1]

    def load(self, context, target) -> dict[str, Any]:
        self.campaign.may_fail()
        for spec in SPECS:
            target.writable(spec.name)[:] = content(int(context.version), self.rank, spec)
            self.campaign.may_fail()
        return {
            "version": context.version,
            "manifest_digest": f"m{context.version}",
            "manifest_scope": "group",
            "digest": digest(int(context.version), self.rank),
            "bytes": sum(spec.nbytes for spec in SPECS),
            "tensors": len(SPECS),
        }

    def move(self) -> None:
        try:
            self._move()
        except WsmError as error:  # must not pass for the error of the command that is under way
            raise AssertionError(f"rank {self.rank}: {error!r}") from error

    def _move(self) -> None:
        if self.stopped:
            self.stopped -= 1
        elif self.in_step is not None:
            self.leave_step()
        else:
            turn = self.worker.poll()
            if turn is JOIN or (turn is not HOLD and self.campaign.chance(0.3)):
                self.enter_step()

    def enter_step(self) -> None:
        self.permit = self.worker.step().__enter__()
        self.in_step = self.permit.step
        self.campaign.entered(self, self.permit.version)

    def leave_step(self) -> None:
        if self.campaign.all_entered(self.in_step):
            self.runner.requests.advance()
            self.permit.__exit__(None, None, None)
            self.in_step = None


def in_this_thread(pending: Pending, work: Callable[[], wsm.Receipt], *, here: bool = False) -> Pending:
    return pending.run(work)


class Campaign:
    """A seed, three ranks, two controllers, and what is known about every step."""

    def __init__(self, seed: int, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seed that can be repeated, not a secret
        self.clock = ManualClock()
        self.failing = self.dying = 0.0
        self.version_of: dict[int, str] = {}
        self.last_step = [0] * RANKS
        self.ranks = [Rank(self, rank, directory) for rank in range(RANKS)]
        self.controllers = [
            wsm.Controller("campaign", clock=self.clock, directory=directory) for _ in range(2)
        ]
        patch.setattr(GroupWords, "wait", lambda *_: False)
        patch.setattr(GroupView, "wait", lambda *_: self.moves())
        # Commands are driven in the caller's thread, as where the kernel grants none of their own.
        patch.setattr(Pending, "carry_out", in_this_thread)
        patch.setattr(AbandonedCommands, "look", lambda _: None)  # a thread: no seed would say when it looks
        for name in ("write_command", "write_committed"):
            self.let_die(patch, name)

    def let_die(self, patch: pytest.MonkeyPatch, name: str) -> None:
        honest = getattr(GroupView, name)

        def write(group, word):
            self.may_die()
            honest(group, word)
            self.may_die()

        patch.setattr(GroupView, name, write)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def may_fail(self) -> None:
        if self.chance(self.failing):
            raise OSError("bad luck")

    def may_die(self) -> None:
        if self.chance(self.dying):
            raise DeathOfTheController

    def moves(self) -> bool:
        """What the ranks do while a controller waits; the clock goes on a little."""
        for _ in range(self.random.randrange(1, 12)):
            self.random.choice(self.ranks).move()
        if self.chance(0.02 * bool(self.failing)):
            self.random.choice(self.ranks).stopped = self.random.randrange(200)
        self.clock.advance(self.random.random() * 0.05)
        return True

    def entered(self, rank: Rank, version: str) -> None:
        step = rank.in_step
        assert step == self.last_step[rank.rank] + 1
        self.last_step[rank.rank] = step
        assert self.version_of.setdefault(step, version) == version, f"step {step} has two versions"
        assert resident_digest(rank.runner.weights, lambda: None) == digest(int(version), rank.rank)

    def all_entered(self, step: int | None) -> bool:
        return step is not None and min(self.last_step) >= step

    def command(self) -> wsm.Receipt:
        controller = self.random.choice(self.controllers)
        options: dict[str, Any] = {
            "in_flight": self.random.choice(list(InFlightPolicy)),
            "deadline_s": self.random.choice([0.05, 1.0, 60.0]),
            "settle_s": self.random.choice([0.5, 60.0]),
        }
        for rank in self.ranks:
            rank.runner.requests.submit(self.random.randrange(1, 30))
        if self.chance(0.4):
            return controller.begin_clear(**options).result()
        version, force = self.random.randrange(1, 200), self.chance(0.5)
        return controller.begin_update(version, force=force, **options).result()

    def assert_one_outcome(self) -> None:
        """Nobody is alone with what he holds; a failed teardown is the one way to differ."""
        status = self.controllers[0].status()
        if not status.over:
            return
        held = {rank.worker.version for rank in self.ranks}
        assert len(held) == 1, held
        assert len({rank.weights for rank in status.ranks} - {"FAULTED"}) <= 1
        if held != {None}:
            assert held == {status.version}

    def close(self) -> None:
        for controller in self.controllers:
            controller.close()
        for rank in reversed(self.ranks):
            rank.worker.close()


@pytest.fixture
def campaign(request, tmp_path, monkeypatch):
    made = Campaign(request.param, tmp_path, monkeypatch)
    yield made
    monkeypatch.undo()
    made.close()


@pytest.mark.parametrize("campaign", SEEDS, indirect=True)
def test_whatever_happens_no_step_is_mixed_and_the_group_recovers(campaign):
    campaign.failing, campaign.dying = 0.03, 0.05
    for _ in range(COMMANDS):
        with contextlib.suppress(WsmError, DeathOfTheController):
            campaign.command()
        for _ in range(8):
            campaign.moves()
        campaign.assert_one_outcome()
    campaign.failing = campaign.dying = 0.0
    for rank in campaign.ranks:
        rank.stopped = 0
    controller = campaign.controllers[0]
    assert controller.clear().outcome in (Outcome.CLEARED, Outcome.ALREADY_CLEARED)
    assert controller.update(7).version == "7"
    before = min(campaign.last_step)
    for _ in range(100):
        campaign.moves()
    assert min(campaign.last_step) > before
    assert campaign.version_of[max(campaign.version_of)] == "7"
    for rank in campaign.ranks:
        assert replay(rank.worker.journal).impossible is None


def test_no_error_of_a_campaign_is_a_bug_of_wsm(tmp_path, monkeypatch):
    campaign = Campaign(4711, tmp_path, monkeypatch)
    campaign.failing = 0.2
    kinds = set()
    for _ in range(200):
        try:
            campaign.command()
        except WsmError as error:  # noqa: PERF203 - each is what the test looks at
            kinds.add(type(error))
    monkeypatch.undo()
    campaign.close()
    assert not any(issubclass(kind, InternalError) for kind in kinds)
    assert len(kinds) >= 3
