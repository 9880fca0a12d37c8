"""A group's owner as a process of its own, so that it can be killed.

``python -m campaign.supervisor_process CONFIG_JSON RANK_MODULE`` says ``ready`` with the processes of its
ranks once the group serves, and ends it when its standard input is closed.
"""

from __future__ import annotations

import json
import sys

from campaign.points import trap_controller
from examples.rollout.config import rollout_config_from_mapping
from examples.rollout.supervisor import RolloutSupervisor
from wsm import log


def main() -> None:
    """Own the group until the campaign ends it."""
    log.configure(level="critical")
    trap_controller("supervisor")
    config = rollout_config_from_mapping(json.loads(sys.argv[1]))
    with RolloutSupervisor(config, rank_module=sys.argv[2], cache_module="campaign.cache_rank") as group:
        sys.stdout.write(f"ready {json.dumps(group.pids())}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
