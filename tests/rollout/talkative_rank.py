"""A process that says more than a log may hold: ``python -m talkative_rank RUN_DIRECTORY RANK PID``."""

from __future__ import annotations

import sys
import time


def main() -> None:
    for number in range(40_000):
        sys.stderr.write(f"line {number} {'.' * 60}\n")
    while True:  # a line that is written while the log is cut may be lost
        sys.stderr.write("the last line\n")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
