"""A controller whose segment is cut short under its command: truncating_controller.py GROUP DIRECTORY."""

from __future__ import annotations

import json
import os
import sys
import time

import wsm
from wsm.errors import WsmError


def error_of(call) -> WsmError:
    try:
        call()
    except WsmError as error:
        return error
    raise SystemExit("nothing was raised")


def main() -> None:
    name, directory = sys.argv[1:]
    with wsm.Controller(name, directory=directory) as controller:
        pending = controller.begin_clear()
        time.sleep(0.05)  # for the thread that drives it to be asleep in the kernel
        os.truncate(f"{directory}/wsm.{name}", 4096)
        errors = {
            "the command under way": error_of(pending.result),
            "status": error_of(controller.status),
            "another command": error_of(controller.clear),
        }
    kinds = {when: type(error).__name__ for when, error in errors.items()}
    sys.stdout.write(json.dumps({"event": "over", "errors": kinds, "message": str(errors["status"])}) + "\n")


if __name__ == "__main__":
    main()
