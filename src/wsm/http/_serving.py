"""Where the app of ``wsm serve`` listens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from wsm import log
from wsm.http import errors
from wsm.http.security import Security, is_loopback, networks, read_tokens
from wsm.shared_directory import bind_alone

#: Seconds in which the head of a request has to arrive.
HEAD_S: Final = 10.0

#: Seconds for which a connection stays without a request.
_IDLE_S: Final = 60

#: Seconds that a server which ends leaves to answers under way.
ENDING_S: Final = 30

#: Connections at once. One more ends the one that is idle for longest.
MOST_CONNECTIONS = 4096

#: Requests for text at once; the other places are for commands.
MOST_TEXTS: Final = 3584

#: Files that a server has open for each connection, that to an upstream included, and others.
_FILES_EACH, _FILES_BESIDE = 2, 512

#: Seconds in which a client has to go on reading what it is sent.
STALLED_S = 60.0

_PEER: Final = struct.Struct("3i")


@dataclass(frozen=True)
class Listening:
    """Where and to whom a server answers.

    Parameters
    ----------
    host, port : str, int
        The address; port 0 takes a free one.
    uds : path or None
        The Unix socket, in the place of an address.
    token_file : path or None
        The tokens; without it only this host, and what is trusted, is let in.
    trust : tuple of str
        Networks that need no token.
    allowed_hosts : tuple of str
        Names that requests without a token may have in ``Host``.
    certificate, key : path or None
        TLS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    uds: Path | None = None
    token_file: Path | None = None
    trust: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    def security(self) -> Security:
        """Return who is let in.

        Raises
        ------
        BadInputError
            If another address than loopback has neither tokens nor trusted networks (code
            ``bad-http-address``), these are none, or the files of TLS cannot be used (``bad-tls-file``).
        """
        self._require_tls()
        admin, read = (None, None) if self.token_file is None else read_tokens(self.token_file)
        if self.uds is None and admin is None and not self.trust and not is_loopback(self.host):
            problem = (
                "other hosts reach it: give --token-file, or --trust with the networks that need no token"
            )
            raise errors.bad_address(address=self.host, problem=problem)
        if self.trust:
            log.logger("http").warning("networks.trusted", networks=", ".join(self.trust))
        hosts = frozenset(name.lower() for name in self.allowed_hosts)
        return Security(admin, read, networks(self.trust), hosts)

    def _require_tls(self) -> None:
        if self.certificate is None:
            if self.key is not None:
                raise errors.bad_tls_file(file=str(self.key), problem="a key needs a certificate: --tls-cert")
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, lambda: "")
        except (OSError, ValueError) as error:
            problem = f"it is no certificate with its key ({error}); give both, in PEM"
            raise errors.bad_tls_file(file=str(self.certificate), problem=problem) from None


class _CheckedProtocol(H11Protocol):
    """HTTP/1.1 whose head arrives in time, and over a Unix socket from this user or root alone.

    A client that stops reading is let go; where all places are taken, an idle one makes place.
    """

    _heard = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.access_log = False
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user not in (0, os.geteuid()):
                log.logger("http").warning("peer.refused", user=user)
                transport.abort()
                return
        elif (
            self.client is None
        ):  # reset before its address was asked: to the guard it would be a Unix socket
            transport.abort()
            return
        self._heard = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_place()
        if not transport.is_closing():
            self._wait("head", HEAD_S, self._too_late)

    def _make_place(self) -> None:
        idle = [each for each in self.connections if each is not self and not each._answers()]  # type: ignore[union-attr] # of this class, all
        leaves = min(idle, key=lambda each: each._heard) if idle else self  # type: ignore[union-attr] # the same
        self.connections.discard(leaves)
        leaves.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait("reader", STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget("reader")

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        super().data_received(data)
        if self._answers():
            self._forget("head")
        else:
            self._wait("head", HEAD_S, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(*self._timers)
        super().connection_lost(exc)

    def _wait(self, what: str, seconds: float, then: Callable[[], object]) -> None:
        """End this connection by `then` unless what is waited for comes; it may be waited for already."""
        if what not in self._timers:
            self._timers[what] = self.loop.call_later(seconds, then)

    def _forget(self, *what: str) -> None:
        for each in what:
            if each in self._timers:
                self._timers.pop(each).cancel()

    def _too_late(self) -> None:
        self._forget("head")
        if not self._answers():
            self.transport.close()

    def _answers(self) -> bool:
        """Whether the head of a request is here, and its answer is not all sent."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete


@contextlib.contextmanager
def _sockets(at: Listening) -> Iterator[tuple[list[socket.socket], str]]:
    """Give the socket that a server accepts on, and its address; a Unix socket's name goes at the end."""
    if at.uds is not None:
        bound = bind_alone(at.uds)
        if bound is None:
            raise errors.bad_address(address=str(at.uds), problem="another server listens there")
        try:
            bound.socket.listen(MOST_CONNECTIONS)
            yield [bound.socket], f"unix:{at.uds}"
        finally:
            bound.release()
        return
    try:
        asked = at.host.strip("[]"), at.port
        [(family, *_, address), *_] = socket.getaddrinfo(
            *asked, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        both = family is socket.AF_INET6
        made = socket.create_server(address, family=family, backlog=MOST_CONNECTIONS, dualstack_ipv6=both)
    except OSError as error:
        raise errors.bad_address(address=f"{at.host}:{at.port}", problem=str(error)) from None
    with made:
        host, port = made.getsockname()[:2]
        scheme = "https" if at.certificate else "http"
        yield [made], f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _server(
    app: ASGIApp, at: Listening, kind: type[uvicorn.Server] = uvicorn.Server, **other: Any
) -> uvicorn.Server:
    told: dict[str, Any] = {
        "http": _CheckedProtocol,
        "ws": "none",
        "loop": "asyncio",
        "proxy_headers": False,
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
        "timeout_keep_alive": _IDLE_S,
        "timeout_graceful_shutdown": ENDING_S,
    }
    return kind(uvicorn.Config(app, ssl_certfile=at.certificate, ssl_keyfile=at.key, **{**told, **other}))


class _ServerWithin(uvicorn.Server):
    """A server in the event loop of another, which hears the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_within(app: ASGIApp, at: Listening) -> None:
    """Answer in this event loop, until this is cancelled; another server there has the app's life and logs.

    Raises
    ------
    BadInputError
        If another process listens there (code ``bad-http-address``).
    """
    logs: dict[str, Any] = {"access_log": True, "log_level": None}
    server = _server(app, at, _ServerWithin, **logs, lifespan="off", timeout_graceful_shutdown=1)
    with _sockets(at) as (sockets, _):
        try:
            await server.serve(sockets)
        finally:
            if server.started:
                await server.shutdown(sockets)


def serve(
    app: ASGIApp,
    at: Listening,
    announce: Callable[[str], object],
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Answer until a signal ends this process. Blocks; to be called in the main thread.

    `beside`: what runs in the same event loop meanwhile.
    """
    _allow_files()

    async def both(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        running = None if beside is None else asyncio.ensure_future(beside())
        try:
            await server.serve(sockets)
        finally:
            if running is not None:
                running.cancel()
                await asyncio.wait({running})

    with _sockets(at) as (sockets, where):
        announce(where)
        asyncio.run(both(_server(app, at), sockets))


def _allow_files() -> None:
    """Let this process have a file open for every place, as far as the host allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_EACH * MOST_CONNECTIONS + _FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def served_beside(app: ASGIApp, at: Listening) -> Iterator[str]:
    """Answer in a thread while the block runs; give the address."""
    _allow_files()
    with _sockets(at) as (sockets, where):
        server = _server(app, at)
        thread = threading.Thread(target=server.run, args=(sockets,), name="wsm-http-server", daemon=True)
        thread.start()
        try:
            yield where
        finally:
            server.should_exit = True
            thread.join(ENDING_S)
