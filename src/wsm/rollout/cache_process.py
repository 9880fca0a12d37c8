"""The KV-cache process of a group: ``python -m wsm.rollout.cache_process DIRECTORY NUMBER SUPERVISOR_PID``.

Started where the configuration says ``kv_cache_process: true``, and replaced like a rank when it dies. It
takes part in every command through :class:`wsm.CacheParticipant`. Imports no paddle.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from wsm import log
from wsm.rollout.config import rollout_config_from_mapping
from wsm.rollout.host_blocks import HostBlocks
from wsm.rollout.process_life import Stop, end_with
from wsm.rollout.run_directory import CONFIG_FILE
from wsm.states.vocabulary import KVPolicy
from wsm.worker import CacheParticipant

_IDLE_S = 0.01


def main(arguments: list[str]) -> None:
    """Take part until it is asked to end."""
    run_directory = Path(arguments[0])
    end_with(int(arguments[2]))
    stop = Stop()
    config = rollout_config_from_mapping(
        json.loads((run_directory / CONFIG_FILE).read_text(encoding="utf-8"))
    )
    log.configure(level=os.environ.get("WSM_LOG_LEVEL", "info"))
    blocks = HostBlocks(config.engine.cache_process_bytes)
    with CacheParticipant(config.group, blocks, kv_policies=frozenset(KVPolicy)) as participant:
        while not stop.asked:
            if not participant.poll():
                participant.wait(_IDLE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
