"""The first lines of the command ``wsm``: a signal that comes during its imports ends it silently.

Beside the package, since to import any part of it imports the library first, which takes half a second.
Nothing has begun in that time, so nothing is left behind. Standard streams that are closed are opened here,
before any file takes their numbers.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_BASE = 128


def main() -> NoReturn:
    """Run the command line of this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asked for
            signal.signal(number, _leave)
    _open_closed_streams()
    from wsm.cli.main import main as run_command  # noqa: PLC0415 - what a signal may interrupt from here on

    run_command()


def _open_closed_streams() -> None:
    """Open what is closed of the standard streams: what is printed would land in the next file of ours."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(_BASE + number)


if __name__ == "__main__":
    main()
