"""The exporter behind an address of this host, for a Prometheus that scrapes it."""

from __future__ import annotations

import http.server
import ipaddress
import socket
from http import HTTPStatus
from typing import Any

from wsm.errors import BadInputError
from wsm.metrics.exporter import Exporter

#: Seconds that a client may take to send its request.
_PATIENCE_S = 10


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, an address of the loopback alone.

    Raises
    ------
    BadInputError
        If it is none, or another host could reach it.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host
    try:
        number, is_loopback = int(port), ipaddress.ip_address(host).is_loopback
    except ValueError:
        number, is_loopback = -1, True
    if not 0 <= number < 1 << 16:
        problem = "is no HOST:PORT of this host, as 127.0.0.1:9464"
    elif not is_loopback:
        problem = "is no address of the loopback, and metrics are served there alone; put a proxy in front"
    else:
        return host, number
    raise BadInputError(f"the address {text!r} {problem}", code="bad-metrics-address", address=text)


class MetricsServer(http.server.ThreadingHTTPServer):
    """Answers scrapes until it is shut down.

    Parameters
    ----------
    exporter : Exporter
        What is served.
    host, port : str, int
        Where; port 0 is any, and ``server_address`` says which.

    Raises
    ------
    OSError
        If the address is taken.
    """

    daemon_threads = True

    def __init__(self, exporter: Exporter, host: str, port: int) -> None:
        self.exporter = exporter
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Scrape)


class _Scrape(http.server.BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: MetricsServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # A page in a browser may name this address by a host of its own, and read what is answered.
        host = self.headers.get("Host", "").rpartition(":")[0].strip("[]") or self.headers.get("Host", "")
        if host not in ("localhost", "127.0.0.1", "::1", str(self.server.server_address[0])):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="metrics are at /metrics")
        else:
            status, headers, body = self.server.exporter.answer(self.headers.get("Accept", ""))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say nothing of a scrape that went well, every 15 seconds."""
