"""What stands between a fleet's callers and a replica, as an ingress does, and does harm as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import httpx

PATIENCE_S = 60.0


class Answer(NamedTuple):
    """What goes back to the caller."""

    status: int
    body: bytes


#: Is told the path that is asked for, and what asks the replica; returns what goes back.
Harm = Callable[[str, Callable[[], Answer]], Answer]


def as_it_is(_path: str, ask: Callable[[], Answer]) -> Answer:
    """Do no harm."""
    return ask()


class Between:
    """A server on loopback that passes on whatever it is asked."""

    def __init__(self, behind: str) -> None:
        self.harm: Harm = as_it_is
        outer = self

        class Passing(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name: value for name, value in self.headers.items() if name != "Host"}

                def ask() -> Answer:
                    said = httpx.request(
                        self.command, behind + self.path, content=body, headers=headers, timeout=PATIENCE_S
                    )
                    return Answer(said.status_code, said.content)

                status, content = outer.harm(self.path, ask)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
