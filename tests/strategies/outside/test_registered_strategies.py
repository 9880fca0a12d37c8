"""A process that embeds wsm makes a strategy of its own known: to loads, to configurations and to workers."""

from __future__ import annotations

import pytest

from tests.raising import raising
from wsm.config import WsmConfig
from wsm.strategies import (
    STRATEGIES,
    MemoryTarget,
    SnapshotSource,
    load,
    publish_snapshot,
    register_strategy,
)
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.tensor import TensorSpec
from wsm.worker.loading import Sources

SPEC = TensorSpec("w", "U8", (4,))

pytestmark = pytest.mark.usefixtures("site")


class Twin(IpcSnapshot):
    """Snapshots, under another name."""

    def __init__(self):
        self.closed = []

    def close(self, source):
        self.closed.append(source)


def test_a_strategy_that_is_only_registered_is_known_to_loads_and_to_workers(tmp_path):
    register_strategy("twin", Twin())
    publish_snapshot(tmp_path, 3, {0: {"w": (SPEC, bytes(4))}}, durable=False)
    report = load(SnapshotSource(tmp_path, 0, device_id=0), MemoryTarget([SPEC]), name="twin")
    assert (report.strategy, report.version) == ("twin", "3")
    assert isinstance(Sources(WsmConfig("g", 1, strategy="twin")).of(0), SnapshotSource)


def test_sources_are_let_go_by_their_strategy_once_also_where_one_cannot_be():
    twin = Twin()
    register_strategy("twin", twin)
    sources = Sources(WsmConfig("g", 2, strategy="twin"))
    made = [sources.of(rank) for rank in (0, 1, 0)]
    assert made[0] is made[2]
    sources.close()
    sources.close()
    assert sorted(twin.closed, key=lambda source: source.rank) == made[:2]

    class Stubborn(Twin):
        def close(self, source):
            super().close(source)
            raise OSError("still connected")

    stubborn = Stubborn()
    register_strategy("stubborn", stubborn)
    sources = Sources(WsmConfig("g", 2, strategy="stubborn"))
    _ = [sources.of(rank) for rank in (0, 1)]
    with pytest.raises(OSError, match="still connected"):
        sources.close()
    assert len(stubborn.closed) == 2
    sources.close()


@pytest.mark.parametrize("name", ["ipc", "twin", "announced"])
def test_a_name_that_is_taken_is_refused(announce, name):
    announce("some_weights", "raise OSError('imported')", "announced = some_weights:Any")
    register_strategy("twin", Twin())
    with raising("strategy-taken", match=f"the name '{name}' of a load strategy is taken by"):
        register_strategy(name, Twin())
    assert list(STRATEGIES) == ["ipc_snapshot", "ipc", "ipc_async", "delta", "rsync", "gdr"]


@pytest.mark.parametrize(
    ("name", "thing", "problem"),
    [
        ("twin", Twin, "it is <class"),
        ("twin", object(), "it is <object"),
        ("twin", None, "it is None"),
        ("", Twin(), "a name is a text that is not empty"),
        (7, Twin(), "a name is a text that is not empty"),
    ],
    ids=["a class", "an object", "nothing", "no name", "a number as its name"],
)
def test_what_is_no_strategy_is_refused_with_the_reason(name, thing, problem):
    with raising("not-a-strategy", match=f"gives no load strategy {name!r}: {problem}"):
        register_strategy(name, thing)


def test_a_source_of_another_strategy_is_refused_by_type():
    register_strategy("twin", Twin())
    with raising("bad-source-type", match="strategy twin loads from a SnapshotSource, not from a str"):
        load("somewhere", MemoryTarget([SPEC]), name="twin")
