"""The KV-cache process of a group: ``-m examples.rollout.cache_process DIRECTORY NUMBER SUPERVISOR_PID``.

Started where the configuration says ``kv_cache_process: true``, and replaced like a rank when it dies. It
takes part in every command through :class:`wsm.CacheParticipant`. Imports no paddle.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path

from examples.rollout.config import rollout_config_from_mapping
from examples.rollout.process_life import Stop
from examples.rollout.run_directory import CONFIG_FILE
from wsm import log
from wsm.ending import end_with
from wsm.states.vocabulary import KVPolicy
from wsm.worker import CacheParticipant

_IDLE_S = 0.01


class HostBlocks:
    """Anonymous memory; a :class:`wsm.actions.surfaces.KeepingKVCacheSurface`. It starts without memory.

    It is memory for blocks that ranks would swap out. The reference engine never swaps, so the blocks have no
    content; their memory comes and goes with every command.

    Parameters
    ----------
    nbytes : int
        Bytes that it takes while it is there.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._memory: mmap.mmap | None = None

    def rebuild(self) -> int:
        """Take the memory, every page of it; return its bytes. Idempotent."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, self._nbytes)
            self._memory.write(bytes(self._nbytes))
        return self._nbytes

    def release(self) -> int:
        """Give the memory back; return the bytes let go. Idempotent."""
        freed = self.allocated_bytes()
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        return freed

    def forget(self) -> None:
        """There is no content to forget."""

    def forget_idle(self) -> int:
        """No request keeps a block here."""
        return 0

    def keep_all(self) -> int:
        """No block has content."""
        return 0

    def allocated_bytes(self) -> int:
        """Bytes held now."""
        return 0 if self._memory is None else self._nbytes


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
