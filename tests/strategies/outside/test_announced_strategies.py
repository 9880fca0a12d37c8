"""Strategies from outside, announced by a package or registered, with their sections: found or refused."""

from __future__ import annotations

import importlib
import sys

import pytest

from examples.rollout.config import rollout_config_from_mapping
from tests.raising import raising
from wsm.config import ConfigurationError, WsmConfig, config_from_mapping, load_config
from wsm.errors import InternalError
from wsm.strategies import (
    STRATEGIES,
    IpcSource,
    MemoryTarget,
    SnapshotSource,
    load,
    publish_snapshot,
    register_strategy,
)
from wsm.strategies.ipc.source import IpcConfig
from wsm.strategies.registry import strategy_called
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.strategy import Sections
from wsm.strategies.tensor import TensorSpec
from wsm.worker.loading import Sources

pytestmark = pytest.mark.usefixtures("site")


SPEC = TensorSpec("w", "U8", (4,))

#: A strategy that loads snapshots, under another name.
TWIN = """
from wsm.strategies import SnapshotSource, Strategy
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot

class Twin(IpcSnapshot):
    pass
"""


def test_a_package_is_imported_when_its_strategy_is_asked_for_and_not_before(announce):
    announce("twin_weights", TWIN, "twin = twin_weights:Twin")
    Sources(config_from_mapping({"name": "g", "ranks": 1, "strategy": "ipc"}))
    with raising("unknown-strategy", match=r"'triplet'; use one of .*, twin"):
        strategy_called("triplet")
    assert "twin_weights" not in sys.modules
    assert Sources(config_from_mapping({"name": "g", "ranks": 1, "strategy": "twin"})).of(0).rank == 0
    assert "twin_weights" in sys.modules


def test_a_strategy_may_be_announced_as_a_class_or_as_an_object_and_is_made_once(announce):
    announce("twin_weights", f"{TWIN}\nTWIN = Twin()", "one = twin_weights:TWIN\ntwo = twin_weights:Twin")
    assert type(strategy_called("one")) is type(strategy_called("two"))
    assert strategy_called("two") is strategy_called("two")


def test_a_package_that_wsms_own_sections_are_enough_for_reads_them(announce, tmp_path):
    announce("twin_weights", TWIN, "twin = twin_weights:Twin")
    group = {"name": "g", "ranks": 2, "strategy": "twin", "snapshot": {"directory": str(tmp_path)}}
    source = Sources(config_from_mapping(group)).of(1)
    assert (source.directory, source.rank, source.world_size) == (str(tmp_path), 1, 2)


def test_a_name_of_wsms_own_always_means_wsms_own(announce):
    announce("twin_weights", TWIN, "ipc = twin_weights:Twin")
    assert strategy_called("ipc") is STRATEGIES["ipc"]
    assert "twin_weights" not in sys.modules


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise OSError('no licence')", "OSError: no licence"),
        ("", "AttributeError: module 'broken_weights' has no attribute 'Broken'"),
        ("class Broken:\n def __init__(self, address): pass", "TypeError: .*missing 1 required positional"),
        (
            "from wsm.strategies import Strategy\nclass Broken(Strategy): pass",
            "TypeError: Can't instantiate abstract class Broken",
        ),
    ],
    ids=["import", "raises", "no such class", "needs arguments", "half a strategy"],
)
def test_a_package_that_cannot_be_imported_is_named_with_its_entry_point_and_the_reason(
    announce, code, reason
):
    announce("broken_weights", code, "broken = broken_weights:Broken")
    with raising("strategy-import", match=reason) as caught:
        config_from_mapping({"name": "g", "ranks": 1, "strategy": "broken", "broken": {}})
    assert (caught.value.name, caught.value.entry_point) == ("broken", "broken_weights:Broken")
    assert "the package broken_weights announces the load strategy 'broken'" in str(caught.value)
    with raising("strategy-import"):
        load(SnapshotSource(".", 0), MemoryTarget(()), name="broken")


WITHOUT_TYPE = """
from wsm.strategies import Strategy
class Broken(Strategy):
 sections = SECTIONS
 source = open = preview = None"""
TWO_SECTIONS = """
from dataclasses import make_dataclass
SECTIONS = (make_dataclass("A", ["a"]), make_dataclass("B", ["b"]))"""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("Broken = 3", "it is 3"),
        ("class Broken: pass", "it is <broken_weights.Broken object"),
        (f"SECTIONS = ()\n{WITHOUT_TYPE}", "it has no source_type that is a type"),
        (f"SECTIONS = (int,)\n{WITHOUT_TYPE}\n source_type = int", "not a sequence of dataclasses"),
        (f"SECTIONS = None\n{WITHOUT_TYPE}\n source_type = int", "its sections are None"),
        (f"{TWO_SECTIONS}{WITHOUT_TYPE}\n source_type = int", "more than one section of its own"),
    ],
    ids=["a number", "another class", "no type", "no dataclass", "no sections", "two sections"],
)
def test_what_is_announced_and_is_no_strategy_is_refused_with_its_package(announce, code, problem):
    announce("broken_weights", code, "broken = broken_weights:Broken")
    with raising("not-a-strategy", match=problem) as caught:
        strategy_called("broken")
    assert caught.value.origin == "the package broken_weights (broken_weights:Broken)"


def test_two_packages_with_one_name_are_refused_by_both_names(announce):
    announce("one_weights", TWIN, "twin = one_weights:Twin")
    announce("two_weights", TWIN, "twin = two_weights:Twin")
    with raising("strategy-taken", match="'twin'") as caught:
        strategy_called("twin")
    assert sorted(caught.value.holders) == [
        "the package one_weights (one_weights:Twin)",
        "the package two_weights (two_weights:Twin)",
    ]


# -- a process that embeds wsm makes a strategy of its own known -----------------------------------------


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


# -- the section of a strategy from outside --------------------------------------------------------------


#: Two strategies with a section that checks itself; the module evaluates its annotations.
CODE = """
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional
from wsm.config_reading import OptionFault
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.snapshot.source import SnapshotConfig, SnapshotSource

@dataclass(frozen=True)
class ShelfConfig:
    directory: str
    depth: int = 1
    wait_s: float = 1.0
    comment: str | None = None
    mirror: Optional[str] = None
    weight: float | None = None
    ids: Sequence[int] = ()
    names: dict[str, str] = field(default_factory=dict)

    def fault(self, ranks, *, used):
        if used and self.depth > ranks:
            return OptionFault("depth", f"is {self.depth}", f"give {ranks} at most")
        return None

class Shelf(IpcSnapshot):
    sections = (ShelfConfig, SnapshotConfig)

    def source(self, sections, rank, ranks):
        shelf = sections.of(ShelfConfig)
        ahead = sections.of(SnapshotConfig).readahead_bytes
        return SnapshotSource(shelf.directory, rank, world_size=ahead or None)
"""


@pytest.fixture
def shelf(announce):
    """The package is installed; its module, once it is imported."""
    announce("shelf_weights", CODE, "shelf = shelf_weights:Shelf\nranks = shelf_weights:Shelf")
    return lambda: importlib.import_module("shelf_weights")


def group(**options):
    return {"name": "g", "ranks": 2, "strategy": "shelf", **options}


def test_a_strategy_reads_its_own_section_and_one_of_wsms(shelf):
    config = config_from_mapping(group(shelf={"directory": "/d"}, snapshot={"readahead_bytes": 7}))
    assert config.sections["shelf"].directory == "/d"
    assert Sources(config).of(1) == SnapshotSource("/d", 1, world_size=7)


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"directory": "/d", "deph": 2}, "shelf: 'deph' is unknown; did you mean 'depth'"),
        ({}, "shelf: 'directory' is missing; add it"),
        ({"directory": 3}, "shelf: 'directory' is 3; it must be a text"),
        ({"directory": "/d", "depth": "2"}, "shelf: 'depth' is '2'; it must be a whole number"),
        ({"directory": "/d", "depth": True}, "shelf: 'depth' is True; it must be a whole number"),
        ({"directory": "/d", "wait_s": 0}, "shelf: 'wait_s' is 0; it must be a number more than 0"),
        ({"directory": "/d", "comment": 3}, "shelf: 'comment' is 3; it must be a text or None"),
        ({"directory": "/d", "weight": "x"}, "shelf: 'weight' is 'x'; it must be a number or None"),
        ({"directory": "/d", "ids": 3}, "shelf: 'ids' is 3; it must be a list of"),
        ({"directory": "/d", "names": []}, "shelf: 'names' is []; it must be a mapping"),
        ({"directory": "/d", "depth": 3}, "shelf: depth: is 3; give 2 at most"),
        (None, "shelf: is None; it must be a mapping of options"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_file_and_key(shelf, tmp_path, section, text):
    file = tmp_path / "wsm.yaml"
    file.write_text(repr(group(shelf=section)).replace("None", "null").replace("True", "true"))
    with pytest.raises(ConfigurationError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"configuration {file}: {text}")


def test_values_that_may_be_are_taken(shelf):
    section = {
        "directory": "/d",
        "comment": None,
        "weight": 1,
        "ids": [1],
        "names": {"a": "b"},
        "mirror": "m",
    }
    found = config_from_mapping(group(shelf=section)).sections["shelf"]
    assert (found.comment, found.weight, found.ids, found.mirror) == (None, 1, [1], "m")


def test_a_section_that_is_needed_and_absent_is_refused_by_what_it_lacks(shelf, tmp_path):
    file = tmp_path / "wsm.yaml"
    file.write_text(repr(group()))
    with pytest.raises(ConfigurationError, match=f"{file}: shelf: 'directory' is missing"):
        load_config(file)


def test_a_section_may_be_given_in_code(shelf):
    section = shelf().ShelfConfig("/d")
    config = WsmConfig("g", 2, strategy="shelf", sections={"shelf": section})
    assert Sources(config).of(0).directory == "/d"
    with pytest.raises(ConfigurationError, match="sections: shelf: is 'd'; it must be a ShelfConfig"):
        WsmConfig("g", 2, strategy="shelf", sections={"shelf": "d"})


def test_the_section_of_a_strategy_that_is_not_the_configured_one_is_read_all_the_same(shelf):
    config = config_from_mapping(group(strategy="ipc", shelf={"directory": "/d", "depth": 9}))
    assert config.sections["shelf"].depth == 9
    assert isinstance(Sources(config).of(0), IpcSource)
    with pytest.raises(ConfigurationError, match="'deph' is unknown"):
        config_from_mapping(group(strategy="ipc", shelf={"directory": "/d", "deph": 9}))


def test_a_section_reaches_the_processes_of_a_rollout_unchanged(shelf):
    section = {"directory": "/d", "ids": [1, 2], "names": {"a": "b"}}
    config = rollout_config_from_mapping({"group": group(shelf=section)})
    again = rollout_config_from_mapping(config.as_mapping())
    assert again.as_mapping() == config.as_mapping()
    assert again.group.sections["shelf"] == config.group.sections["shelf"]


def test_a_section_without_its_strategy_says_what_to_install():
    text = (
        "mapping: strategy: no load strategy is called 'shelf', whose section is there; install the package"
    )
    with pytest.raises(ConfigurationError, match=text):
        config_from_mapping(group(shelf={}))
    with pytest.raises(ConfigurationError, match="mapping: 'shelf' is unknown"):
        config_from_mapping(group(strategy="ipc", shelf={}))


def test_no_file_names_the_attribute_that_holds_such_sections():
    with pytest.raises(ConfigurationError, match="'sections' is unknown"):
        config_from_mapping({"name": "g", "ranks": 1, "sections": {}})


def test_a_strategy_with_a_section_cannot_be_called_as_an_option_is(shelf):
    with pytest.raises(ConfigurationError, match="'ranks' is the name of an option"):
        config_from_mapping(group(strategy="ranks"))


def test_a_strategy_that_asks_for_a_section_that_it_does_not_declare_is_told_so():
    with pytest.raises(InternalError, match="IpcConfig and has not declared it"):
        Sections({}).of(IpcConfig)
