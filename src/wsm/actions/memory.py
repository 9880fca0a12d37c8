"""The allocator's cache: handed back, so that released memory is really free for somebody else.

It measures nothing; :mod:`wsm.actions.verify` does, after this.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext


class EmptyAllocatorCache(Action):
    """Return cached free blocks to the device or the operating system."""

    name = names.EMPTY_ALLOCATOR_CACHE
    purpose = "return cached free blocks to the device"

    def run(self, context: ActionContext) -> None:
        """Empty the cache. Local; synchronizes the device."""
        context.runner.memory.empty_cache()
