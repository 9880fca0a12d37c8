"""The KV-cache process of a group, with traps in its journal and actions: the reference one otherwise."""

from __future__ import annotations

import sys

from campaign.points import trap_participant
from examples.rollout import cache_process

#: What its orders call it.
VICTIM = "cache"

if __name__ == "__main__":
    trap_participant(VICTIM)
    cache_process.main(sys.argv[1:])
