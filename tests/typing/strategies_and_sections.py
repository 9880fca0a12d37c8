"""Strategies from outside, and configurations, are typed as one would write them; checked by mypy only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from wsm.config import WsmConfig
from wsm.config_reading import OptionFault
from wsm.strategies import Offer, Sections, Strategy, register_strategy
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.strategies.strategy import CheckedSection


@dataclass(frozen=True)
class ShelfConfig:
    directory: str = "."

    def fault(self, ranks: int, *, used: bool) -> OptionFault | None:
        return OptionFault("directory", "is full", "take another") if used and ranks > 8 else None


class Shelf(Strategy):
    source_type = str
    sections = (ShelfConfig, SnapshotConfig)
    rereadable = True

    def source(self, sections: Sections, rank: int, ranks: int) -> str:
        shelf: ShelfConfig = sections.of(ShelfConfig)
        readahead: int = sections.of(SnapshotConfig).readahead_bytes
        return f"{shelf.directory}/{rank} of {ranks}, {readahead} ahead"

    def open(
        self, source: str, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> AbstractContextManager[Offer]:
        raise NotImplementedError(source, version, observer)

    def preview(self, source: str, version: str | None) -> AbstractContextManager[Offer]:
        return self.open(source, version)


def a_section(section: ShelfConfig, of_wsm: SnapshotConfig) -> tuple[CheckedSection, CheckedSection]:
    return section, of_wsm


def registered() -> None:
    register_strategy("shelf", Shelf())


def a_configuration() -> str:
    snapshot = SnapshotConfig(directory="/models")
    config = WsmConfig("policy", 2, snapshot=snapshot, sections={"shelf": ShelfConfig()})
    same: SnapshotConfig = config.snapshot
    return same.directory + config.ipc.directory + config.mooncake.address
