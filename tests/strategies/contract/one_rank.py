"""The rank that every version of the contract arrives at, and the two states that most of them are."""

from __future__ import annotations

from arrivals import Arrival
from wrongs import State, make_state

from wsm.strategies import LoadReport, MemoryTarget, load
from wsm.strategies.digest import digest_of, shard_digest

A, B = make_state(seed=1), make_state(seed=2)
BYTES = sum(spec.nbytes for spec, _ in A.values())


class Rank:
    """Rank 0's memory, and whether anybody was told that it is no longer whole."""

    def __init__(self, arrival: Arrival, *, serving: State | None = None) -> None:
        self.arrival = arrival
        self.target = MemoryTarget(spec for spec, _ in A.values())
        self.tainted = 0
        for name, (_, data) in (serving or {}).items():
            self.target.writable(name)[:] = data

    def load(self, version: int | None, **options: object) -> LoadReport:
        return load(
            self.arrival.source(),
            self.target,
            name=self.arrival.strategy,
            version=version,
            taint=self._taint,
            **options,
        )

    def require_next(self, version: int, state: State, **options: object) -> LoadReport:
        """Have it published, and see that a load brings it."""
        self.arrival.publish(version, state)
        report = self.load(version, **options)
        assert self.holds(state)
        return report

    def holds(self, state: State) -> bool:
        return all(bytes(self.target.readable(name)) == data for name, (_, data) in state.items())

    def _taint(self) -> None:
        self.tainted += 1


def digest_of_state(state: State) -> str:
    return shard_digest((spec, digest_of(data)) for spec, data in state.values())
