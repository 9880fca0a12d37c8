"""The memory plan of a hot update: what staging takes beside what is held, and whether that is there.

Responsible for refusing before a byte is taken: a rank that runs out of memory in the middle of staging takes
its served version with it. It must not know how weights are staged.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import StagingMemoryError, StagingUnsupportedError
from wsm.actions.measuring import available_bytes
from wsm.actions.staging_surface import AvailableMemory, StageableWeights

#: Bytes that stay free besides, for each rank: what steps and loads allocate meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024


class PlanStagingMemory(Action):
    """Compare what staging needs with what may be taken, for every rank that draws on the same memory.

    All ranks stage at the same time, so a rank counts the others in where they share the host's memory;
    its own shard stands for theirs. Where nobody can say what is available, or it cannot be read now, it is
    believed to suffice.

    Parameters
    ----------
    reserve_bytes : int
        What must stay free, per rank.
    """

    name = names.PLAN_STAGING_MEMORY
    purpose = "see that a second version fits beside the served one"

    def __init__(self, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._reserve_bytes = reserve_bytes

    def run(self, context: ActionContext) -> None:
        """Plan. Local, takes nothing. Reports ``staging_bytes`` and ``staging_available_bytes``.

        Raises
        ------
        StagingUnsupportedError
            If the weights cannot be staged.
        StagingMemoryError
            If there is too little memory; it names both numbers.
        """
        weights, memory = context.runner.weights, context.runner.memory
        if not isinstance(weights, StageableWeights):
            raise StagingUnsupportedError(weights=type(weights).__name__)
        needed = self.bytes_needed(context)
        context.facts["staging_bytes"] = needed
        if not isinstance(memory, AvailableMemory):
            return
        sharing = context.world_size if memory.shared_by_ranks else 1
        available = available_bytes(context)
        context.facts["staging_available_bytes"] = available
        if available is None:
            return
        if sharing * (needed + self._reserve_bytes) > available:
            raise StagingMemoryError(
                needed=sharing * needed,
                reserve=sharing * self._reserve_bytes,
                available=available,
                ranks=sharing,
            )

    def bytes_needed(self, context: ActionContext) -> int:
        """Bytes of the whole shard: every tensor lies in memory twice until the old ones are let go."""
        return sum(spec.nbytes for spec in context.runner.weights.specs().values())
