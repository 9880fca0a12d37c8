"""Whatever is asked in whatever order, and whatever fails: a rank steps only with weights and KV cache."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lone_rank import LoneRank, load

import wsm
from wsm import KVPolicy, Tag
from wsm.actions.measuring import resident_digest
from wsm.errors import WsmError
from wsm.states.replay import replay

TAGS = st.sampled_from([frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE}), wsm.ALL_TAGS])
FAILING = st.sampled_from(["nothing"] * 6 + ["release", "rebuild", "load", "release_kv"])


class TaggedCommands(RuleBasedStateMachine):
    """One real worker and controller, and commands of all tags in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.failing = "nothing"
        self.rank = LoneRank(directory, load=self._load)
        self._stack.callback(self.rank.close)
        runner = self.rank.runner
        for surface, name, point in (
            (runner.weights, "release", "release"),
            (runner.kv_cache, "rebuild", "rebuild"),
            (runner.kv_cache, "release", "release_kv"),
        ):
            setattr(surface, name, self._failing(getattr(surface, name), point))
        self.digests: dict[int, str] = {}

    def _failing(self, work, point):
        def may_fail():
            if self.failing == point:
                raise OSError(f"{point} was to fail")
            return work()

        return may_fail

    def _load(self, context, target):

        facts = load(context, target)
        if self.failing == "load":
            raise OSError("load was to fail")
        self.digests[context.version] = facts["digest"]
        return facts

    @rule(tags=TAGS, failing=FAILING)
    def clear(self, tags, failing) -> None:
        self._ask(failing, lambda: self.rank.clear(tags=tags))

    @rule(tags=TAGS, version=st.integers(1, 3), force=st.booleans(), failing=FAILING)
    def update(self, tags, version, force, failing) -> None:
        named = version if Tag.WEIGHTS in tags else None
        self._ask(failing, lambda: self.rank.update(named, tags=tags, force=force, kv_policy=KVPolicy.DROP))

    def _ask(self, failing, command) -> None:
        self.failing = failing
        try:
            receipt = command()
        except WsmError:
            pass
        else:
            assert (receipt.missing == ()) is self.rank.controller.status().serving
        finally:
            self.failing = "nothing"

    @invariant()
    def steps_only_with_both(self) -> None:
        runner, worker = self.rank.runner, self.rank.worker
        turn = worker.poll()
        held = sorted(runner.weights.held()) == sorted(runner.weights.specs())
        whole = held and bool(runner.kv_cache.allocated_bytes())
        status = self.rank.controller.status()
        assert status.serving is (turn is wsm.SERVE)
        if turn is wsm.SERVE:
            assert whole
            assert runner.requests.admitting
            with worker.step() as permit:
                digest = resident_digest(runner.weights, lambda: None)
                assert digest == self.digests[permit.version]
        else:
            assert turn is wsm.HOLD
            assert worker.version is None or held

    @invariant()
    def what_is_said_to_be_missing_is_missing(self) -> None:
        runner, status = self.rank.runner, self.rank.controller.status()
        if status.ranks[0].weights in ("NORMAL", "CLEARED"):
            assert (Tag.WEIGHTS in status.missing) is (not any(runner.weights.held()))
            assert (Tag.KV_CACHE in status.missing) is (not runner.kv_cache.allocated_bytes())

    def teardown(self) -> None:
        assert replay(self.rank.worker.journal).impossible is None
        self._stack.close()


TestTaggedCommands = TaggedCommands.TestCase
#: There are few states, and twenty commands come to all of them.
TestTaggedCommands.settings = settings(stateful_step_count=20)
