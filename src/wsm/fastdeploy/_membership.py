"""Which ranks of a FastDeploy job are one group, and one object that its first rank tells the others.

With expert parallelism all ranks of the EP group step together, else those of the TP group. The groups are
FastDeploy's own; paddle is imported when one of several ranks is to be told something.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsm.errors import RefusedError
from wsm.fastdeploy._configuration import WorkerFacts

#: Two processes with the same text here share memory: it names one boot of one kernel.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Broadcast = Callable[[Any], Any]


@dataclass(frozen=True)
class Membership:
    """The place of this process in its group.

    Parameters
    ----------
    rank : int
        Within the group.
    global_ranks : sequence of int
        paddle's number of each of the group's ranks.
    broadcast : callable
        ``broadcast(value)`` returns on every rank what rank 0 gave. Collective.
    world_size : int
        Ranks of the whole job.
    """

    rank: int
    global_ranks: Sequence[int]
    broadcast: Broadcast
    world_size: int = 1


def membership_of(facts: WorkerFacts, parallel_config: Any) -> Membership:
    """Read the group of this process off FastDeploy's parallel configuration."""
    group = parallel_config.ep_group if facts.expert_parallel else getattr(parallel_config, "tp_group", None)
    ranks = list(getattr(group, "ranks", None) or [0])
    if len(ranks) == 1 and group is None:
        return Membership(0, ranks, lambda value: value)
    import paddle  # noqa: PLC0415 - a worker of one rank without a group needs none

    def broadcast(value: Any) -> Any:
        told = [value]
        paddle.distributed.broadcast_object_list(told, src=ranks[0], group=group)
        return told[0]

    return Membership(
        ranks.index(paddle.distributed.get_rank()), ranks, broadcast, int(paddle.distributed.get_world_size())
    )


def meet(member: Membership, facts: WorkerFacts) -> tuple[str, str]:
    """Return the name of the group and of this start of it, as its first rank tells all. Collective, blocks.

    Raises
    ------
    RefusedError (``several-hosts``)
        If this rank runs on another host than the first one.
    """
    host = os.uname().nodename
    with suppress(OSError):
        host = _BOOT_ID.read_text(encoding="ascii").strip()
    name, run_id, there = member.broadcast((f"fastdeploy-{facts.port}", uuid.uuid4().hex, host))
    if there != host:
        raise RefusedError(
            f"rank {member.rank} of group {name!r} runs on another host than rank 0, and a group shares the "
            "memory of one host; start FastDeploy with ranks that step together on one node, or without "
            "wsm.fastdeploy",
            code="several-hosts",
            rank=member.rank,
            group=name,
        )
    return name, run_id
