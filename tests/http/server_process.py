"""A server of one group in a process of its own: ``server_process.py NAME DIRECTORY SOCKET``."""

import sys
from pathlib import Path

from wsm.http import Commands, create_app
from wsm.http._serving import Listening, serve

if __name__ == "__main__":
    name, directory, uds = sys.argv[1:]
    at = Listening(uds=Path(uds))
    app = create_app(Commands(name, directory=directory), security=at.security())
    serve(app, at, lambda where: sys.stdout.write(f"{where}\n") and sys.stdout.flush())
