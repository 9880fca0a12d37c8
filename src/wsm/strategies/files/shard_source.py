"""A directory that holds a shard for each rank, under the number of the rank's device.

What a configuration says of such a directory, and one rank's view of it: what all strategies share that look
for files by these names. FastDeploy takes the entry of ``CUDA_VISIBLE_DEVICES`` that
``FLAGS_selected_gpus`` points at. It breaks on UUIDs, MIG names and indexes out of range; here each gives an
error that says so, and a rank without any GPU uses its own number. Pure: the environment is handed in; knows
no files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from wsm.config_reading import OptionFault
from wsm.strategies import errors
from wsm.typed import Count, CountFrom0

_NUMBER = re.compile(r"[0-9]{1,9}")


def device_id_from_environment(rank: int, environment: Mapping[str, str]) -> int:
    """Return the physical device id of this process.

    Parameters
    ----------
    rank : int
        The global rank; the answer where the environment names no GPU.
    environment : mapping of str to str
        ``os.environ``, or what a test makes of it.

    Raises
    ------
    BadInputError
        If the environment names devices by UUID or MIG instance, or points outside of its own list.
    """
    selected = environment.get("FLAGS_selected_gpus", "").strip()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not selected and (visible is None or visible.strip() in ("", "-1")):
        return rank
    index = _selected_index(selected)
    if visible is None:
        return index  # every device is visible under its own number
    entries = [entry.strip() for entry in visible.split(",")]
    if entries in ([""], ["-1"]):
        raise errors.bad_device_id(
            problem=f"FLAGS_selected_gpus is {selected!r}, but CUDA_VISIBLE_DEVICES hides all devices"
        )
    if index >= len(entries):
        raise errors.bad_device_id(
            problem=f"FLAGS_selected_gpus is {index}, beyond the {len(entries)} entries of "
            f"CUDA_VISIBLE_DEVICES={visible!r}"
        )
    entry = entries[index]
    if not _NUMBER.fullmatch(entry):
        raise errors.bad_device_id(
            problem=f"CUDA_VISIBLE_DEVICES holds {entry!r}, a UUID or MIG instance, which has no number"
        )
    return int(entry)


def device_index_from_environment(environment: Mapping[str, str]) -> int:
    """Return which of the visible devices this process uses; 0 where nothing says so.

    Raises
    ------
    BadInputError
        If ``FLAGS_selected_gpus`` is not one index.
    """
    return _selected_index(environment.get("FLAGS_selected_gpus", "").strip())


def _selected_index(selected: str) -> int:
    if not selected:
        return 0
    if not _NUMBER.fullmatch(selected):
        raise errors.bad_device_id(problem=f"FLAGS_selected_gpus is {selected!r}, which is not one index")
    return int(selected)


Source = TypeVar("Source", bound="ShardSource")


@dataclass(frozen=True)
class ShardSource:
    """One rank's view of a directory of shards.

    Parameters
    ----------
    directory : path or str
        Where the shards are.
    rank : int
        Global rank of the shard.
    device_id : int, optional
        Physical device id in the file names; taken from the environment if not given
        (:mod:`wsm.strategies.files.shard_source`).
    world_size : int, optional
        Number of ranks of the group; not checked if not given.
    """

    directory: Path | str
    rank: CountFrom0
    device_id: CountFrom0 | None = None
    world_size: Count | None = None

    def resolved_device_id(self, environment: Mapping[str, str] = os.environ) -> int:
        """Return the device id, from the environment if none was given.

        Raises
        ------
        BadInputError
            If the environment gives no number either.
        """
        if self.device_id is not None:
            return self.device_id
        return device_id_from_environment(self.rank, environment)


def place_fault(first_rank: int, job_ranks: int, ranks: int) -> OptionFault | None:
    """Return what is wrong with where a group's ranks lie among those of the whole job."""
    if job_ranks and job_ranks < first_rank + ranks:
        found = f"{job_ranks} ranks, of which {ranks} from {first_rank} on are this group's"
        return OptionFault("job_ranks", found, "give the number of ranks of all groups, or 0")
    return None


@dataclass(frozen=True)
class ShardsConfig:
    """What a configuration says of a directory of shards.

    Parameters
    ----------
    directory : str
        Where the shards are.
    device_ids : sequence of int
        The device id in each rank's file names; empty: from the environment (``CUDA_VISIBLE_DEVICES`` and
        ``FLAGS_selected_gpus``), and the rank itself where there is neither.
    first_rank : int
        The number of the group's first rank in file names, where several groups of a job share a directory
        (FastDeploy names files by the rank in the whole job).
    job_ranks : int
        Ranks of that whole job, whose shards a version has; 0: this group's alone. Versions of a job with
        several groups are not cut for other numbers of ranks.
    """

    directory: str = "."
    device_ids: Sequence[CountFrom0] = ()
    first_rank: CountFrom0 = 0
    job_ranks: CountFrom0 = 0

    def fault(self, ranks: int, *, used: bool) -> OptionFault | None:  # noqa: ARG002 - the same either way
        """Return what is wrong with the device ids; see :class:`wsm.strategies.strategy.CheckedSection`."""
        fault = place_fault(self.first_rank, self.job_ranks, ranks)
        if fault is not None or len(self.device_ids) in (0, ranks):
            return fault
        found = f"{len(self.device_ids)} ids for {ranks} ranks"
        return OptionFault("device_ids", found, "give one per rank, or none")

    def source(self, kind: type[Source], rank: int, ranks: int) -> Source:
        """Return one rank's view: whose it is, and everything else as it is said here, by the same names."""
        of_ranks = ("device_ids", "first_rank", "job_ranks")
        said = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in of_ranks}
        device_id = self.device_ids[rank] if self.device_ids else None
        of_several = self.first_rank or self.job_ranks > ranks
        world_size = None if of_several else ranks
        return kind(rank=self.first_rank + rank, device_id=device_id, world_size=world_size, **said)
