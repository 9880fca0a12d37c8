"""The doors of a server: TLS by its files, a Unix socket for its own user, connections that ended early."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.another_user import as_another_user
from wsm.errors import BadInputError
from wsm.http import Client, _serving
from wsm.http._serving import Listening, served_beside


async def said(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.url.scheme} {request.client is None}")


APP = Starlette(routes=[Route("/", said)])
ASKED = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this host, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-subj", "/CN=wsm", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.mark.needs("openssl")
def test_tls_is_by_file_and_a_client_that_trusts_it_is_answered(certified: tuple[Path, Path]) -> None:
    certificate, key = certified
    with served_beside(APP, Listening(certificate=certificate, key=key)) as where:
        assert where.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=trusting, trust_env=False) as client:
            assert client.get(where).text == "https False"
        with httpx.Client(trust_env=False) as stranger, pytest.raises(httpx.ConnectError):
            stranger.get(where)
        host, port = where.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            plain.sendall(ASKED)
            assert b"200" not in plain.recv(100)


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("fault", ["no key", "no certificate", "a key of another", "no file", "no PEM"])
def test_files_of_tls_that_do_not_go_together_are_refused_before_a_socket_is_there(
    certified: tuple[Path, Path], tmp_path: Path, fault: str
) -> None:
    certificate, key = certified
    other = tmp_path / "other.pem"
    if fault == "a key of another":
        make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", other]
        subprocess.run(make, check=True, capture_output=True)
    if fault == "no PEM":
        other.write_text("none")
    faults: dict[str, Any] = {
        "no key": {"certificate": certificate, "key": None},
        "no certificate": {"certificate": None, "key": key},
        "a key of another": {"certificate": certificate, "key": other},
        "no file": {"certificate": certificate, "key": other},
        "no PEM": {"certificate": other, "key": key},
    }
    with pytest.raises(BadInputError) as caught:
        Listening(**faults[fault]).security()
    assert caught.value.code == "bad-tls-file"


@pytest.mark.needs("root")
def test_a_unix_socket_answers_its_own_user_and_no_other_whatever_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "socket"

    def asks() -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(str(place))
            made.settimeout(10)
            try:
                made.sendall(ASKED)
                received = made.recv(100)
            except ConnectionError:
                received = b""
        assert received == b""

    with served_beside(APP, Listening(uds=place)) as where:
        for each in (place, *place.parents[:-1]):
            each.chmod(each.stat().st_mode | 0o777)
        as_another_user(asks)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(place)), base_url="http://x") as client:
            assert client.get("/").text == "http True"
        assert where == f"unix:{place}"


def test_a_connection_that_was_reset_before_it_was_accepted_is_no_client_without_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its peer has no address any more, like that of a Unix socket, whose user was checked."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    real = _serving._server
    asked: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["client"])
        await APP(scope, receive, send)

    def first_reset(*given: Any) -> Any:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as made:
                made.sendall(ASKED)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return real(*given)

    monkeypatch.setattr(_serving, "_server", first_reset)
    with served_beside(app, Listening(port=port)) as where, httpx.Client(verify=False) as client:  # noqa: S501 - plain HTTP
        assert client.get(where).text == "http False"
    assert None not in asked


def test_a_server_behind_a_path_that_is_no_socket_or_has_a_server_is_not_taken_over(
    tmp_path: Path, make_front: Callable[..., Any]
) -> None:
    place = tmp_path / "socket"
    security = Listening(uds=place).security()
    with served_beside(make_front(security=security).app, Listening(uds=place)) as where:
        with Client(where) as client:
            assert client.ready()
        with pytest.raises(BadInputError, match="another server"), served_beside(APP, Listening(uds=place)):
            pass
