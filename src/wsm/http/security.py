"""Who is let in: addresses, tokens, the Host and Origin of browsers, and the size and pace of bodies.

It stands before every route, an upstream's too. Without a token only this host is let in, or an address that
was declared; a browser on it is not, whatever a page makes it ask.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wsm.errors import RefusedError, WsmError
from wsm.http import errors
from wsm.http.answers import send_failure
from wsm.http.bodies import MOST_TEXT_BYTES
from wsm.shared_directory import ForeignPathError, read_ours
from wsm.typed import CountFrom0, Seconds, typed_calls

#: Headers of one request. What forwards them takes time that grows with the square of their number.
MOST_HEADERS: Final = 256

#: Bytes of path, query and headers of one request together.
MOST_HEAD: Final = 64 << 10

#: Characters of the shortest token.
_LEAST_TOKEN = 16

#: What is told without a token: routers and orchestrators have none.
_OPEN = frozenset(("GET", path) for path in ("/health", "/health_generate", "/ping", "/wsm/v1/ready"))

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@typed_calls
@dataclass(frozen=True)
class Security:
    """Who is let in.

    Parameters
    ----------
    admin, read : str or None
        Tokens: for everything; and for what only reads.
    trusted : tuple of networks
        Addresses that need no token.
    allowed_hosts : frozenset of str
        Names that requests without a token may have in ``Host``, beside addresses and ``localhost``.
    readable : frozenset of (str, str)
        Methods and paths for which the read token will do; a path may end with a parameter, ``{name}``.
    max_body : int
        Bytes of the largest body.
    body_s : float
        Seconds in which a body has to arrive.
    """

    admin: str | None = field(default=None, repr=False)
    read: str | None = field(default=None, repr=False)
    trusted: tuple[_Network, ...] = ()
    allowed_hosts: frozenset[str] = frozenset()
    readable: frozenset[tuple[str, str]] = frozenset()
    max_body: CountFrom0 = MOST_TEXT_BYTES
    body_s: Seconds = 60.0

    def refusal(
        self, method: str, path: str, peer: str | None, headers: Sequence[tuple[bytes, bytes]]
    ) -> WsmError | None:
        """Return why a request is refused, before its body is read; None: it is let in.

        Parameters
        ----------
        method, path : str
            What it asks for.
        peer : str or None
            The address at the other end of the connection; None: a Unix socket, whose peer was checked. What
            a header says of the client's address counts for nothing.
        headers : sequence of (bytes, bytes)
            Names in lower case.
        """
        framing = _unsound_framing(headers)
        if framing is not None:
            return errors.bad_body(field="headers", problem=framing)
        said = dict(headers)
        method = "GET" if method == "HEAD" else method
        is_admin, is_read = self._tokens(said.get(b"authorization", b""))
        reads = self._may_be_read(method, path)
        if is_admin or (is_read and reads):
            return None
        if is_read:
            return errors.forbidden(why="this token may only read")
        is_wrong = b"authorization" in said and self.admin is not None
        if (method, path) in _OPEN and not is_wrong:
            return None
        if is_wrong or not self._needs_no_token(peer):
            return errors.unauthorized()
        return self._as_browser(peer, said, by_page_alone=method == "GET" and not reads)

    def _tokens(self, said: bytes) -> tuple[bool, bool]:
        """Whether what is said is the token for everything, and the one for what only reads."""
        token = said[7:].strip() if said[:7].lower() == b"bearer " else b""
        # Both are compared, always: how long it takes says nothing.
        is_admin = self.admin is not None and hmac.compare_digest(token, self.admin.encode())
        return is_admin, self.read is not None and hmac.compare_digest(token, self.read.encode())

    def _may_be_read(self, method: str, path: str) -> bool:
        path = path.rstrip("/")
        if (method, path) in self.readable or (method, path) in _OPEN:
            return True
        parts = (known.partition("{") for verb, known in self.readable if verb == method)
        return any(parameter and path.startswith(before) for before, parameter, _ in parts)

    def _needs_no_token(self, peer: str | None) -> bool:
        if peer is None:
            return True
        address = _address_of(peer.partition("%")[0])
        if address is None:
            return False
        untold = address.is_loopback and self.admin is None  # what stands before a server asks from here, too
        return untold or any(address in network for network in self.trusted)

    def _as_browser(
        self, peer: str | None, headers: Mapping[bytes, bytes], *, by_page_alone: bool
    ) -> WsmError | None:
        """Return why a request that needs no token is refused: a page may have made a browser ask it.

        With `by_page_alone` it is one that a page can have asked without a word of where it comes from, and
        that may change something: a GET over plain HTTP, whose ``Referer`` was left out.
        """
        by_name = {name: value.decode("latin-1") for name, value in headers.items()}
        host = by_name.get(b"host", "")
        if peer is not None and not self._is_own(_host_of(host)):
            return RefusedError(
                f"the Host {host[:200]!r} is no address and no declared name of this server; ask it by its "
                "address, start it with --allow-host, or give a token",
                code="misdirected",
                host=host,
            )
        if by_name.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            return errors.forbidden(why="a page of another site asks for it")
        for header in (b"origin", b"referer"):
            said = by_name.get(header)
            if said is not None and _place_of(said) != host.lower():
                return errors.forbidden(why=f"its {header.decode()} is {said[:100]!r}")
        told = by_name.keys() & {b"sec-fetch-site", b"origin", b"referer"}
        if by_page_alone and not told and by_name.get(b"user-agent", "").startswith("Mozilla/"):
            return errors.forbidden(why="a browser asks for it and names no page; give a token")
        return None

    def _is_own(self, host: str) -> bool:
        """Whether a host names no domain, which a page's owner could let point here."""
        if host == "localhost" or host in self.allowed_hosts:
            return True
        address = _address_of(host)
        return address is not None and not address.is_unspecified  # which reaches loopback from any page


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text is, of IPv4 where it is mapped; None: it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _place_of(url: str) -> str | None:
    """Return host and port of a URL, in lower case; None: it is none."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return None


def _host_of(authority: str) -> str:
    """Return the host of ``HOST:PORT``, in lower case and without brackets, if those are a pair."""
    if authority.startswith("["):
        host, ends, _ = authority[1:].partition("]")
        return host.lower() if ends else authority
    return authority.partition(":")[0].lower()


def _unsound_framing(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Say what of a request's headers another server could read in another way; None: nothing."""
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        return "it has both a length and an encoding of transfer"
    for name in (b"content-length", b"host", b"transfer-encoding", b"authorization"):
        if names.count(name) > 1:
            return f"{name.decode()} stands there {names.count(name)} times"
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        return "its encoding of transfer is not 'chunked'"
    return None


def read_tokens(file: Path) -> tuple[str, str | None]:
    """Return the tokens of a file: lines ``admin TOKEN`` and, if there is one, ``read TOKEN``.

    Raises
    ------
    BadInputError
        If it has no admin token, a short one, other users can read it, or it cannot be read (code
        ``bad-token-file``).
    """

    def bad_file(problem: str) -> WsmError:
        return errors.bad_token_file(file=str(file), problem=problem)

    found: dict[str, str] = {}
    for words in token_lines(file, bad_file):
        if len(words) != 2 or words[0] not in ("admin", "read") or words[0] in found:
            raise bad_file("a line is neither 'admin TOKEN' nor 'read TOKEN'")
        if len(words[1]) < _LEAST_TOKEN or not words[1].isascii():
            raise bad_file(f"the {words[0]} token has not {_LEAST_TOKEN} ASCII characters or more")
        found[words[0]] = words[1]
    if "admin" not in found or found["admin"] == found.get("read"):
        raise bad_file("it has no admin token of its own")
    return found["admin"], found.get("read")


def token_lines(file: Path, refused: Callable[[str], WsmError]) -> list[list[str]]:
    """Return the words of each line of a file that no other user may read, but of comments.

    Raises
    ------
    WsmError
        What `refused` makes of its problem, if it cannot be read, or others can.
    """
    try:
        if file.stat().st_mode & 0o077:
            raise refused("other users may use it; chmod 600 it")
        lines = read_ours(file).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise refused(error.strerror or str(error)) from None
    except ForeignPathError as error:
        raise refused(str(error)) from None
    return [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def networks(texts: Iterable[str]) -> tuple[_Network, ...]:
    """Return networks that are written as CIDR.

    Raises
    ------
    BadInputError
        If one is none, or all addresses there are (code ``bad-network``).
    """
    read = []
    for text in texts:
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise errors.bad_network(network=f"--trust {text}", problem=str(error)) from None
        if network.prefixlen == 0:
            raise errors.bad_network(network=f"--trust {text}", problem="it is every address; use a token")
        read.append(network)
    return tuple(read)


def is_loopback(host: str) -> bool:
    """Whether a server at `host` is reached from this host alone."""
    address = _address_of(host.strip("[]"))
    return host == "localhost" if address is None else address.is_loopback


class SecurityGuard:
    """An ASGI app behind its :class:`Security`.

    Parameters
    ----------
    app : ASGI app
        What is guarded.
    security : Security
        Who is let in.
    """

    def __init__(self, app: ASGIApp, security: Security) -> None:
        self._app = app
        self._security = security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer why not."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        body = _Body(receive, self._security, headers)
        refused = self._refusal(scope, headers, body)
        if scope["type"] == "websocket":
            if refused is None:
                await self._app(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        if refused is not None:
            await send_failure(refused, send, {"Connection": "close"})
            return
        if self._security.admin is not None:  # it is ours, and no upstream's
            scope = {
                **scope,
                "headers": [each for each in scope["headers"] if each[0].lower() != b"authorization"],
            }
        began = False

        async def sent(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, body.receive, sent)
        except WsmError as refusal:
            if began or refusal is not body.refused:
                raise
            await send_failure(refusal, send, {"Connection": "close"})

    def _refusal(self, scope: Scope, headers: Sequence[tuple[bytes, bytes]], body: _Body) -> WsmError | None:
        if len(headers) > MOST_HEADERS:
            return errors.too_many_headers(limit=MOST_HEADERS)
        asked = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        if asked + sum(len(name) + len(value) for name, value in headers) > MOST_HEAD:
            return errors.too_many_headers(limit=MOST_HEAD, of="bytes of path and headers")
        client, method = scope.get("client"), scope.get("method", "GET")
        peer = client[0] if client and client[0] else None
        refused = self._security.refusal(method, path_of(scope), peer, headers)
        if refused is None and body.announced > self._security.max_body:
            return errors.body_too_large(limit=self._security.max_body)
        return refused


class _Body:
    """The body of one request, counted and timed as it arrives."""

    def __init__(
        self, receive: Receive, security: Security, headers: Collection[tuple[bytes, bytes]]
    ) -> None:
        self._receive = receive
        self._security = security
        self._left = security.max_body
        self._until: float | None = None  # from its first part on: a request may wait in a hold before that
        self._whole = False
        self.refused: WsmError | None = None  # why; raised again by each later read
        said = dict(headers).get(b"content-length", b"0")
        self.announced = int(said) if said.isdigit() else 0

    async def receive(self) -> Message:
        """Return the next part; behind the last one, what comes then.

        Raises
        ------
        RefusedError
            If it is too long, or late (codes ``body-too-large``, ``body-too-slow``); from then on always.
        """
        if self.refused is not None:
            raise self.refused
        if self._whole:
            return await self._receive()
        if self._until is None:
            self._until = time.monotonic() + self._security.body_s
        try:
            message = await asyncio.wait_for(self._receive(), max(self._until - time.monotonic(), 0.001))
        except asyncio.TimeoutError:
            why = f"the body did not arrive within {self._security.body_s:g} s; send it faster"
            self.refused = RefusedError(why, code="body-too-slow", seconds=self._security.body_s)
            raise self.refused from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.refused = errors.body_too_large(limit=self._security.max_body)
            raise self.refused
        self._whole = not message.get("more_body", False)
        return message


def path_of(scope: Scope) -> str:
    """Return the path of a request below the place where this app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    below = root and path.startswith(f"{root}/")
    return path.removeprefix(root) if below else path
