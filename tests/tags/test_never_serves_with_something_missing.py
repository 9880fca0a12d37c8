"""Whatever is asked in whatever order, and whatever fails: a rank steps only with weights and KV cache."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant
from lone_rank import SPECS

from tests.in_memory_work import InMemoryWork
from wsm import Tag
from wsm.testing import InMemoryRunner
from wsm.testing.hypothesis import GroupMachine


class TaggedCommands(InMemoryWork, GroupMachine):
    """Real workers and a real controller, and commands of all tags in any order."""

    def make_runner(self, rank):
        return InMemoryRunner(SPECS)

    @invariant()
    def what_is_said_to_be_missing_is_missing(self) -> None:
        status = self.group.controller.status()
        for rank, up in zip(status.ranks, self.group.memory(), strict=True):
            if rank.weights in ("NORMAL", "CLEARED"):
                assert (Tag.WEIGHTS in status.missing) is (not up["weights"])
                assert (Tag.KV_CACHE in status.missing) is (not up["kv_cache"])

    @invariant()
    def requests_are_admitted_only_while_the_group_serves(self) -> None:
        admits = {up["admits"] for up in self.group.memory()}
        if self.group.controller.status().serving:
            assert admits == {True}


TestTaggedCommands = pytest.mark.slow(TaggedCommands.TestCase)
#: There are few states, and ten commands come to all of them.
TestTaggedCommands.settings = settings(stateful_step_count=10, max_examples=20)
