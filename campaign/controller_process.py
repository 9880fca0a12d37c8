"""A controller that obeys orders: ``controller_process NAME DIRECTORY OPERATION VERSION [DEADLINE [LEASE]]``.

Prints one line, the receipt's or the error's, if it lives to see it.
"""

from __future__ import annotations

import os
import sys

from campaign.asking import ask
from campaign.environment import DIRECTORY_VARIABLE
from campaign.points import trap_controller
from wsm import Controller


def main() -> None:
    """Give one command."""
    name, directory, command, version, *rest = sys.argv[1:]
    os.environ[DIRECTORY_VARIABLE] = directory
    trap = trap_controller()
    with Controller(name) as controller:
        limits = dict(zip(("deadline_s", "lease_s"), map(float, rest), strict=False))
        number = int(version) if version else None
        answer = ask(controller, command, number, prepared=lambda: trap.passes("prepared"), **limits)
    said = "" if answer.error is None else f"{type(answer.error).__name__}: "
    sys.stdout.write(f"{said}{answer.said}\n")


if __name__ == "__main__":
    main()
