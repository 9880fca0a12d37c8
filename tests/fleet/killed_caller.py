"""A caller that is killed at a line of its own: ``python killed_caller.py STORE VERSION LIST [LINE]``.

Counts the lines of the roll from its first prepare to its last commit, and kills itself at that one. Without
LINE it says how many there are.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from wsm import fleet
from wsm.fleet import rolling


class LineCount:
    """A tracer that counts lines of :mod:`wsm.fleet.rolling`, and kills at one of them."""

    def __init__(self, last: int | None) -> None:
        self._last = last
        self.counted = self.at_commit = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> LineCount | None:
        if frame.f_code.co_filename != rolling.__file__:
            return None
        name = frame.f_code.co_name
        if event == "line" and (self.counted or name == "_prepare"):
            self.counted += 1
            if name == "_ask" and frame.f_locals.get("operation") == "commit":
                self.at_commit = self.counted
            if self.counted == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def main(store: str, version: str, listed: str, last: str | None = None) -> None:
    found: Any = fleet.read_replicas(listed)
    count = LineCount(None if last is None else int(last))
    sys.settrace(count)
    report = fleet.update(store, version, found)
    sys.settrace(None)
    print(count.at_commit, report.exit_code)  # noqa: T201 - read by who started it


if __name__ == "__main__":
    main(*sys.argv[1:])
