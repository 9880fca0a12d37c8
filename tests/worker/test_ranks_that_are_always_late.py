"""A rank that finds its peers a step ahead whenever it looks does its part of a hot update all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from living_group import eventually
from lone_rank import SPECS, load

import wsm
from wsm import HOLD, Worker
from wsm.testing import InMemoryRunner


class Pair:
    """Two ranks of one group in this process; the second one looks only once the first is in another step."""

    def __init__(self, directory, undo: contextlib.ExitStack) -> None:
        self._config = wsm.WsmConfig(name="pair", ranks=2)
        self.ranks = [
            undo.enter_context(
                Worker(self._config, InMemoryRunner(SPECS), rank=rank, load=load, directory=directory)
            )
            for rank in range(2)
        ]
        self.controller = undo.enter_context(wsm.Controller("pair", directory=directory))
        self.joined = 0

    def go_on(self) -> None:
        for rank in self.ranks:
            turn = rank.poll()
            if turn is not HOLD:
                self.joined += turn is wsm.JOIN
                with rank.step():
                    pass

    def update(self, version: int, *, hot: bool = False) -> wsm.Receipt:
        pending = self.controller.begin_update(version, hot=hot)
        pending.written(10)

        def over() -> bool:
            self.go_on()
            return pending.over

        eventually(over, f"version {version} on both ranks")
        return pending.result()


@pytest.fixture
def pair(tmp_path) -> Iterator[Pair]:
    with contextlib.ExitStack() as undo:
        yield Pair(tmp_path, undo)


def test_a_hot_update_is_begun_and_staged_between_steps_that_are_all_joined(pair: Pair) -> None:
    pair.update(1)
    for version in range(2, 6):
        pair.joined = 0
        assert pair.update(version, hot=True).hot
        assert pair.joined > 0
        assert [rank.version for rank in pair.ranks] == [str(version)] * 2


def test_so_is_an_update_in_place(pair: Pair) -> None:
    for version in range(1, 4):
        assert pair.update(version).version == str(version)
