"""A program: ``trainer.py CLIENT SOURCE ADDRESS DIRECTORY BASE MODEL``; a trainer's lives.

It imports the client once. Each line that it reads, ``{"first": 1, "steps": 3, "asks": true}``, is a
trainer's life in a process of its own: it connects, and brings its steps. What happens it says line by line.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from clients import CLIENTS, Asking, write_directory


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def live(
    client: Any, address: str, directory: Path, base: Path, model: str, *, first: int, steps: int, asks: bool
) -> None:
    client.connect(address, directory, model)
    asking = Asking(client) if asks else None
    if asking:
        asking.start()
    fresh = int(time.monotonic() * 10) % 5000  # what one life brings, none before it has brought
    for number in range(first, first + steps):
        say(began=number)
        client.step(number, partial(write_directory, base=base, number=number + fresh))
        say(brought=number)
    if asking:
        asking.end()
        say(answered=asking.answered, failed=asking.failed)


def main(name: str, source: str, *where: str) -> None:
    address, directory, base, model = where
    client = CLIENTS[name](Path(source))
    say(ready=sorted(client.stood_in))
    for line in sys.stdin:
        life = json.loads(line)
        pid = os.fork()
        if not pid:
            code = 0
            try:
                say(pid=os.getpid())
                live(client, address, Path(directory), Path(base), model, **life)
            except BaseException as error:  # noqa: BLE001 - the end of this life, told
                sys.stderr.write(traceback.format_exc())
                say(raised=f"{type(error).__name__}: {error}"[:600])
                code = 1
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
