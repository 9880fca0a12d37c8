"""A controller that obeys orders: ``python -m campaign.controller_process NAME DIRECTORY COMMAND VERSION``.

Prints one line, the receipt's or the error's, if it lives to see it.
"""

from __future__ import annotations

import os
import sys

from campaign.environment import DIRECTORY_VARIABLE
from campaign.points import trap_controller
from wsm import Controller
from wsm.errors import WsmError


def main() -> None:
    """Give one command."""
    name, directory, command, version = sys.argv[1:5]
    os.environ[DIRECTORY_VARIABLE] = directory
    trap_controller()
    with Controller(name) as controller:
        try:
            if command == "clear":
                receipt = controller.clear(deadline_s=20.0)
            else:
                receipt = controller.update(int(version), hot=command == "hot", deadline_s=20.0)
        except WsmError as error:
            sys.stdout.write(f"{type(error).__name__}: {error}\n")
        else:
            sys.stdout.write(receipt.sentence() + "\n")


if __name__ == "__main__":
    main()
