"""What the contract asks of each strategy's tests: publish good versions, damage them, say what to expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from delta_arrival import DeltaArrival
from ipc_arrival import IpcArrival
from mooncake_arrival import GdrMooncakeArrival, MooncakeArrival
from resliced_arrival import ReslicedArrival
from snapshot_arrival import SnapshotArrival
from stream_arrival import StreamArrival
from transfer_arrival import GdrArrival, TransferArrival, TransferAsItComes
from wrongs import Expected, Wrong

from wsm.strategies.tensor import TensorSpec


class Arrival(Protocol):
    """One strategy with a publisher of its own, for a group of two ranks."""

    #: The strategy's name in the registry.
    strategy: str
    #: What cannot happen to this strategy, with the reason.
    impossible: Mapping[Wrong, str]
    #: Whether it says beforehand what it will bring (:attr:`wsm.strategies.offer.Offer.declared`).
    declared: bool
    #: What every error about a version names: a directory, an address, a port.
    place: str

    def publish(
        self, version: int, state: Mapping[str, tuple[TensorSpec, bytes]], *, finite: bool = False
    ) -> None:
        """Make a good version of rank 0's `state` available (rank 1 gets something else).

        `finite` has the trainer promise that there is neither NaN nor infinity in it.
        """
        ...

    def publish_wrong(
        self, version: int, state: Mapping[str, tuple[TensorSpec, bytes]], wrong: Wrong
    ) -> Expected:
        """Make a version available that is wrong in one way; return what a load of it must say."""
        ...

    def source(self) -> object:
        """Where rank 0 loads from."""
        ...

    def close(self) -> None:
        """End every process and let every resource go."""
        ...


#: Every way that is tested, by what the tests call it; a strategy with several transports has several.
ARRIVALS: Mapping[str, Callable[[Path], Arrival]] = {
    "delta": DeltaArrival,
    "ipc": IpcArrival,
    "ipc_async": StreamArrival,
    "ipc_snapshot": SnapshotArrival,
    "ipc_snapshot, resliced": ReslicedArrival,
    "gdr over checkpoint_transfer": GdrArrival,
    "gdr over mooncake": GdrMooncakeArrival,
    "rsync over checkpoint_transfer": TransferArrival,
    "rsync over checkpoint_transfer, as it comes": TransferAsItComes,
    "rsync over mooncake": MooncakeArrival,
}


def as_parameters(names: Iterable[str]) -> list[object]:
    """Return names of arrivals as a test's parameters; those over Mooncake need its engine."""
    engine = pytest.mark.needs("mooncake")
    return [pytest.param(name, marks=[engine] if "mooncake" in name else []) for name in names]
