"""A process that holds KV cache beside one rank: python cache_transfer.py SETTINGS_JSON RANK.

Written anew after what FastDeploy's cache transfer manager does with its words: it looks at the KV word ten
times a second, lets its blocks and mappings go or takes them anew, waits for the others of its kind, answers.
The blocks are host memory; words and processes are real.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path

from loop_rank import CLEARED, CLEARING, NORMAL, UPDATING, Signal

LOOK_S = 0.1


class CacheTransfer:
    def __init__(self, settings, rank: int) -> None:
        directory, port = Path(settings["directory"]), settings["ports"][0]
        self._rank, self._ranks = rank, settings["ranks"]
        self._end = directory / "end"
        self._makes = settings["cache_process"] == "makes"
        self._word = Signal(directory / f"kv_cache_status.{port}")
        self._ready = Signal(directory / f"cache_ready_signal.{port}", self._ranks).value
        self._swap = Signal(directory / f"swap_space_ready_signal.{port}", self._ranks).value
        self._blocks: mmap.mmap | None = None
        self._take()
        self._says("started")

    def run(self) -> None:
        while not self._end.exists():
            asked = int(self._word.value[0])
            if asked == CLEARING:
                self._let_go()
                self._answer(CLEARED)
            elif asked == UPDATING:
                self._take()
                self._answer(NORMAL)
            time.sleep(LOOK_S)

    def _let_go(self) -> None:
        self._blocks = None
        self._swap[self._rank] = 0
        self._until(lambda: not self._swap.any())
        if not self._makes:
            self._ready[self._rank] = 0
        self._until(lambda: not self._ready.any())

    def _take(self) -> None:
        self._blocks = mmap.mmap(-1, 1 << 20)
        self._swap[self._rank] = 1
        self._until(self._swap.all)
        if self._makes:
            self._ready[self._rank] = 1
        self._until(self._ready.all)

    def _answer(self, value: int) -> None:
        self._word.value[0] = value
        self._says("answered", value=value, holds=self._blocks is not None)

    def _says(self, event: str, **more) -> None:
        sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
        sys.stdout.flush()

    def _until(self, question) -> None:
        while not question() and not self._end.exists():
            time.sleep(LOOK_S / 10)


if __name__ == "__main__":
    CacheTransfer(json.loads(sys.argv[1]), int(sys.argv[2])).run()
