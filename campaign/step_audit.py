"""Holds every step of a ``memory`` group against the version that should have made it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import xxhash

from campaign.memory_rank import read_records
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state, shard
from wsm.states.vocabulary import KVPolicy


class StepAudit:
    """Reads what the ranks wrote down about their steps.

    Parameters
    ----------
    directory : Path
        The group's directory.
    shape : ModelShape
        The model.
    ranks : int
        How many.
    policies : mapping
        By which KV policy each version came; those that are not in it, by DROP.
    contents : mapping
        Seeds of the weights of versions that are not called by them.
    """

    def __init__(
        self,
        directory: Path,
        shape: ModelShape,
        ranks: int,
        policies: Mapping[int, KVPolicy] = MappingProxyType({}),
        contents: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._contents = contents
        self._policies = policies
        self._directory = directory / "steps"
        self._shape = shape
        self._ranks = ranks
        self._seen = [0] * ranks
        self.last_version: int | None = None
        self._versions: dict[tuple[int, int], tuple[int, int]] = {}

    def begin(self) -> None:
        """Forget what was: a new group numbers its epochs anew."""
        for rank in range(self._ranks):
            self._path(rank).unlink(missing_ok=True)
        self._seen = [0] * self._ranks
        self._versions.clear()

    def check(self) -> tuple[int, list[str]]:
        """Check the steps since the last call; return how many there were and what is wrong with them."""
        problems: list[str] = []
        checked = 0
        for rank in range(self._ranks):
            records = list(read_records(self._path(rank)))[self._seen[rank] :]
            self._seen[rank] += len(records)
            checked += len(records)
            for epoch, step, version, digest, idle, running in records:
                self.last_version = version
                first_rank, first = self._versions.setdefault((epoch, step), (rank, version))
                if first != version:
                    problems.append(
                        f"step {step} of epoch {epoch} was mixed: "
                        f"version {first} on rank {first_rank}, {version} on rank {rank}"
                    )
                if digest != self._digest(version, rank):
                    problems.append(
                        f"step {step} of epoch {epoch}: rank {rank} said version {version}, held other bytes"
                    )
                problem = self._kept(version, idle, running)
                if problem:
                    problems.append(f"step {step} of epoch {epoch}: rank {rank} {problem}")
        return checked, problems[:5]

    def _kept(self, version: int, idle: int, running: int) -> str:
        """Say what is wrong with the versions of the KV blocks that a step could read; empty if nothing."""
        policy = self._policies.get(version, KVPolicy.DROP)
        if policy is not KVPolicy.KEEP and idle != version:
            return f"offered prefixes of version {idle} to version {version}, which came with {policy.value}"
        if policy is KVPolicy.DROP and running != version:
            return f"went on from blocks of version {running} in version {version}, which came with drop"
        return ""

    def _path(self, rank: int) -> Path:
        return self._directory / f"rank{rank}.steps"

    def _digest(self, version: int, rank: int) -> int:
        return published_digest(self._shape, self._contents.get(version, version), rank, self._ranks)


@lru_cache(maxsize=256)
def published_digest(shape: ModelShape, version: int, rank: int, ranks: int) -> int:
    """Digest what a rank must hold of the version whose seed is its number."""
    tensors = shard(initial_state(shape, version), shape, rank, ranks)
    digest = xxhash.xxh3_64()
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.intdigest()
