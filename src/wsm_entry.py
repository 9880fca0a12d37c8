"""The first lines of the command ``wsm``: a signal that comes during its imports ends it silently.

Beside the package, since to import any part of it imports the library first, which takes half a second.
Nothing has begun in that time, so nothing is left behind.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

_BASE = 128


def main() -> NoReturn:
    """Run the command line of this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asked for
            signal.signal(number, _leave)
    from wsm.cli.main import main as run_command  # noqa: PLC0415 - what a signal may interrupt from here on

    run_command()


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(_BASE + number)


if __name__ == "__main__":
    main()
