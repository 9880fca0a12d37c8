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
    end_silently()
    _open_closed_streams()
    from wsm.cli.main import main as run_command  # noqa: PLC0415 - what a signal may interrupt from here on

    code = run_command()
    end_undisturbed()
    sys.exit(code)


def end_silently() -> None:
    """Let a signal end this process at once, until a handler of its work's own is installed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asked for
            signal.signal(number, _leave)


def end_undisturbed() -> None:
    """Ignore signals from now on: the exit code stands, and an interpreter that ends handles none itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


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
