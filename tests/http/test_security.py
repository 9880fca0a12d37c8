"""Who is let in, as an attacker tries it: without sockets, against the app and its guard."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from wsm.errors import BadInputError
from wsm.http._serving import Listening
from wsm.http.security import Security, SecurityGuard, networks, read_tokens
from wsm.http.upstream import Upstream

ADMIN, READ = "a" * 20, "r" * 20
LOOPBACK = "127.0.0.1"


async def taken(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that reads the body and says what came through."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    names = b",".join(name for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-names", names)]})
    await send({"type": "http.response.body", "body": str(size).encode()})


def status(
    security: Security, *, peer: str | None = LOOPBACK, method: str = "POST", path: str = "/pause", **headers
):
    """The code of an error, or None if the request is let in."""
    given = {"host": "127.0.0.1:8300", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    refused = security.refusal(method, path, peer, raw)
    return None if refused is None else refused.code


def test_without_tokens_this_host_alone_is_let_in_and_no_header_says_otherwise() -> None:
    plain = Security()
    assert status(plain) is None
    assert status(plain, peer="::1") is None
    assert status(plain, peer="::ffff:127.0.0.1") is None
    assert status(plain, peer=None) is None, "a Unix socket, whose peer was checked"
    for forged in ("x_forwarded_for", "x_real_ip", "forwarded"):
        assert status(plain, peer="10.0.0.7", **{forged: "127.0.0.1"}) == "unauthorized"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8300",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil",
        "[::ffff:0.0.0.0]",
        "[::1",
    ],
)
def test_a_name_that_was_bound_anew_to_loopback_is_refused(host: str) -> None:
    assert status(Security(), host=host) == "misdirected"
    assert status(Security(trusted=networks(["10.0.0.0/8"])), peer="10.1.1.1", host=host) == "misdirected"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8300", "[::1]:8300", "127.0.0.1"])
def test_addresses_and_localhost_are_names_of_ours(host: str) -> None:
    assert status(Security(), host=host) is None
    assert status(Security(allowed_hosts=frozenset({"policy.svc"})), host="policy.svc:80") is None


@pytest.mark.parametrize(
    "header",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"referer": "http://evil.example/page"},
        {"origin": "http://["},
        {"referer": "http://a[b]c"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_what_a_page_makes_a_browser_ask_is_refused_also_of_legacy_gets(header) -> None:
    assert status(Security(), method="GET", path="/clear_load_weight", **header) == "forbidden"
    assert status(Security(), origin="http://127.0.0.1:8300", sec_fetch_site="same-origin") is None


def test_a_browsers_get_that_says_nothing_of_its_page_may_only_read() -> None:
    """Over plain HTTP to another host none says Sec-Fetch-Site, and a page can leave Referer out."""
    near = Security(trusted=networks(["10.0.0.0/8"]), readable=frozenset({("GET", "/wsm/v1/status")}))
    image = {"peer": "10.1.1.1", "method": "GET", "host": "10.0.0.5:8300", "user_agent": "Mozilla/5.0 (X11)"}
    for path in ("/clear_load_weight", "/release_memory_occupation", "/of-an-upstream"):
        assert status(near, path=path, **image) == "forbidden"
        assert status(near, path=path, **{**image, "method": "HEAD"}) == "forbidden"
        assert status(near, path=path, **{**image, "user_agent": "python-requests/2.32"}) is None
        assert status(near, path=path, **image, referer="http://10.0.0.5:8300/docs") is None
        assert status(near, path=path, **image, sec_fetch_site="none") is None, "typed by its user"
    assert status(near, path="/wsm/v1/status", **image) is None


def test_tokens_are_asked_of_every_address_once_there_are_some_but_for_health() -> None:
    both = Security(ADMIN, READ, readable=frozenset({("GET", "/wsm/v1/status")}))
    assert status(both, peer="10.0.0.7") == "unauthorized"
    assert status(both, peer="10.0.0.7", authorization=f"Bearer {ADMIN}", host="any.name") is None
    assert status(both, peer="10.0.0.7", authorization=f"Bearer {ADMIN}x") == "unauthorized"
    assert status(both, peer="10.0.0.7", authorization=f"Basic {ADMIN}") == "unauthorized"
    assert status(both, peer="10.0.0.7", authorization=f"Bearer {READ}") == "forbidden"
    read = {"method": "GET", "path": "/wsm/v1/status", "authorization": f"Bearer {READ}"}
    assert status(both, peer="10.0.0.7", **read) is None
    assert status(both, peer="10.0.0.7", **{**read, "method": "HEAD", "path": "/wsm/v1/status/"}) is None
    assert status(both, peer="10.0.0.7", method="HEAD", path="/health") is None
    assert status(both, peer="10.0.0.7", method="GET", path="/health") is None
    assert status(both) == "unauthorized", "loopback too: what stands before the server may forward to it"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"3"), (b"content-length", b"4")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"host", b"127.0.0.1")],
        [(b"authorization", b"Bearer x"), (b"authorization", b"Bearer y")],
    ],
)
def test_a_head_that_two_servers_could_read_differently_is_refused(headers) -> None:
    refused = Security().refusal("POST", "/pause", LOOPBACK, [(b"host", b"127.0.0.1"), *headers])
    assert refused is not None
    assert refused.code == "bad-body"


def ask(app, **options) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(LOOPBACK, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request("POST", "/pause", **options)

    return asyncio.run(asked())


async def _chunks(count: int):
    for _ in range(count):
        yield b"x" * 10


def test_a_body_beyond_the_bound_is_413_with_a_length_and_in_chunks() -> None:
    guarded = SecurityGuard(taken, Security(max_body=25))
    assert ask(guarded, content=b"x" * 25).text == "25"
    assert ask(guarded, content=b"x" * 26).status_code == 413
    assert ask(guarded, content=_chunks(2)).text == "20"
    assert ask(guarded, content=_chunks(3)).status_code == 413


@pytest.mark.slow
def test_a_request_of_too_many_headers_is_431_whatever_else_it_brings() -> None:
    guarded = SecurityGuard(taken, Security(ADMIN))
    many = {f"X-{number}": "" for number in range(5000)}
    assert ask(guarded, headers=many).status_code == 431
    assert ask(guarded, headers={"Authorization": f"Bearer {ADMIN}", **many}).status_code == 431
    few = {f"X-{number}": "" for number in range(200)}
    assert ask(guarded, headers={"Authorization": f"Bearer {ADMIN}", **few}).status_code == 200


def test_a_head_of_more_than_64_kib_is_431_also_in_one_piece() -> None:
    guarded = SecurityGuard(taken, Security())
    assert ask(guarded, headers={"X-Long": "a" * (64 << 10)}).status_code == 431
    assert ask(guarded, headers={"X-Long": "a" * 1000}).status_code == 200


def test_a_body_that_never_ends_is_408() -> None:
    sent = []

    async def asked() -> None:
        async def silent():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/x",
            "client": (LOOPBACK, 1),
            "headers": [(b"host", b"::1")],
        }
        await SecurityGuard(taken, Security(body_s=0.05))(
            {**scope, "headers": [(b"host", b"127.0.0.1")]}, silent, send
        )

    asyncio.run(asked())
    assert sent[0]["status"] == 408


def test_a_token_of_ours_reaches_no_upstream() -> None:
    guarded = SecurityGuard(taken, Security(ADMIN))
    told = ask(guarded, headers={"Authorization": f"Bearer {ADMIN}", "X-Other": "1"}).headers["x-names"]
    assert "authorization" not in told
    assert "x-other" in told


def test_an_address_that_others_reach_needs_tokens_or_networks(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="token-file"):
        Listening("0.0.0.0", 1).security()  # noqa: S104 - what is refused
    assert Listening("::1", 1).security() == Listening("localhost", 1).security() == Security()
    assert Listening("10.0.0.1", 1, trust=("10.0.0.0/8",)).security().trusted
    for every in ("0.0.0.0/0", "::/0", "10.0.0.0/33"):
        with pytest.raises(BadInputError):
            networks([every])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin {ADMIN}\nread {READ}\n")
    with pytest.raises(BadInputError, match="chmod 600"):
        read_tokens(tokens)
    tokens.chmod(0o600)
    assert read_tokens(tokens) == (ADMIN, READ)
    for bad in ("", "read " + READ, "admin short", f"admin {ADMIN}\nread {ADMIN}", f"boss {ADMIN}"):
        tokens.write_text(bad)
        with pytest.raises(BadInputError):
            read_tokens(tokens)


def forwarded(path: str, **options) -> httpx.Response:
    """Ask an upstream that answers what it was sent."""

    def engine(request: httpx.Request) -> httpx.Response:
        headers = {name.decode(): value.decode() for name, value in request.headers.raw}
        said = {"path": request.url.raw_path.decode(), "headers": headers, "body": request.content.decode()}
        return httpx.Response(201, json=said, headers={"Connection": "x-one", "X-One": "1", "X-Two": "2"})

    class Engine(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await request.aread()
            answer = engine(request)
            return httpx.Response(answer.status_code, headers=answer.headers, stream=Parts(answer.content))

    class Parts(httpx.AsyncByteStream):
        def __init__(self, content: bytes) -> None:
            self.content = content

        async def __aiter__(self):
            for byte in self.content:
                yield bytes([byte])

    upstream = Upstream("http://127.0.0.1:1", transport=Engine())

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(upstream)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            return await client.request("POST", path, **options)

    return asyncio.run(asked())


def test_what_is_forwarded_keeps_path_query_and_body_and_no_header_of_one_connection() -> None:
    named = {"Connection": "x-secret, close", "X-Secret": "1", "TE": "trailers", "X-Other": "2"}
    answer = forwarded("/v1/completions?a=%2F&b=", content=b"{}", headers=named)
    said = answer.json()
    assert (answer.status_code, said["path"], said["body"]) == (201, "/v1/completions?a=%2F&b=", "{}")
    lowered = {name.lower() for name in said["headers"]}
    assert not {"x-secret", "te"} & lowered
    assert said["headers"].get("X-Other", said["headers"].get("x-other")) == "2"
    assert lowered == {*("host", "accept", "accept-encoding", "user-agent", "content-length", "x-other")}
    assert "x-one" not in answer.headers
    assert answer.headers["x-two"] == "2"


@pytest.mark.parametrize(
    "path",
    [
        *("//update_weights_from_tensor", "/a//b", "/%2e%2e/x", "/a/%2e/b"),
        *("/a/%2e%2e%2fb", "/a%5c..%5cb", "/a/..;/b", "/a;x/..;y=1/b", "/a%0d%0ab", "/a%00"),
    ],
)
def test_a_path_that_an_upstream_could_read_as_another_is_not_forwarded(path: str) -> None:
    assert forwarded(f"http://front{path}").status_code == 400


def test_a_path_that_is_no_part_of_a_url_is_400_and_not_forwarded() -> None:
    told: list[Any] = []

    async def scene() -> None:
        async def receive() -> Any:
            return {"type": "http.disconnect"} if told else {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            told.append(message)

        scope = {"type": "http", "method": "POST", "path": "/generate", "raw_path": b"/generate#x"}
        await Upstream("http://127.0.0.1:1")({**scope, "headers": []}, receive, send)

    asyncio.run(scene())
    assert told[0]["status"] == 400


def test_nothing_is_said_upstream_that_the_client_did_not_say() -> None:
    """Else an engine may answer in a coding that the client did not ask for."""
    told: list[str] = []

    def engine(request: httpx.Request) -> httpx.Response:
        told.extend(request.headers)
        return httpx.Response(200, stream=httpx.ByteStream(b""))

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"host", b"127.0.0.1")]}

    async def asked() -> None:
        async def receive():
            await asyncio.Event().wait()

        async def send(_message):
            pass

        await Upstream("http://127.0.0.1:1", transport=httpx.MockTransport(engine))(scope, receive, send)

    asyncio.run(asked())
    assert told == ["host"]


def test_an_upstream_that_is_not_there_is_502_and_a_url_that_is_none_is_refused() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    guarded = Upstream("http://127.0.0.1:1", transport=httpx.MockTransport(gone))
    assert ask(guarded).status_code == 502
    for bad in ("ftp://x", "http://", "http://u:p@h", "http://h/path", "127.0.0.1:80"):
        with pytest.raises(BadInputError):
            Upstream(bad)
