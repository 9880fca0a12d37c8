"""The section of a strategy from outside is read as strictly as wsm's own, and reaches every process."""

from __future__ import annotations

import importlib

import pytest

from examples.rollout.config import rollout_config_from_mapping
from wsm.config import ConfigurationError, WsmConfig, config_from_mapping, load_config
from wsm.errors import InternalError
from wsm.strategies import IpcSource, SnapshotSource
from wsm.strategies.ipc.source import IpcConfig
from wsm.strategies.strategy import Sections
from wsm.worker.loading import Sources

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
