"""A program: a server of its own for a group of test ranks, with one surface. It says its port.

Directories are taken for the published version that their names end with.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import uvicorn

from wsm.http import Commands, create_app
from wsm.http.surfaces import SURFACES, AdoptedDirectory, SurfaceOptions


def by_number(directory: str, label: str | None) -> AdoptedDirectory:
    number = re.search(r"\d+$", directory)
    named = label or (str(int(number[0])) if number else "")
    return AdoptedDirectory(named, f"{directory}@{named}")


def main(name: str, directory: str, surface: str) -> None:
    app = create_app(
        Commands(name, directory=Path(directory)),
        surfaces=[SURFACES[surface](SurfaceOptions(adopt=by_number, deadline_s=60))],
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
