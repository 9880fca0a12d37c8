"""The KV-cache process of a small group: python cache_process.py SETTINGS_JSON.

A test steers it by files, as it steers ranks (`rank_process.py`); its number is the number of ranks.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from rank_process import Orders, SteeredKVCache, say

import wsm
from wsm.config import config_from_mapping


class CacheProcess:
    def __init__(self, settings: dict) -> None:
        directory = Path(settings["directory"])
        config = config_from_mapping(settings["config"])
        self._stopping = threading.Event()
        self.cache = SteeredKVCache(Orders(directory, config.ranks))
        self.participant = wsm.CacheParticipant(config, self.cache, directory=directory)

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        say(event="ready")
        while not self._stopping.is_set():
            if not self.participant.poll():
                self.participant.wait(0.002)
        say(event="ended", kv=self.participant.kv.name, bytes=self.cache.allocated_bytes())
        self.participant.close()

    def _listen(self) -> None:
        sys.stdin.read()
        self._stopping.set()


if __name__ == "__main__":
    try:
        CacheProcess(json.loads(sys.argv[1])).run()
    except Exception as error:  # noqa: BLE001 - whatever ended the process is what the test wants to know
        say(event="died", error=type(error).__name__, message=str(error))
        sys.exit(1)
