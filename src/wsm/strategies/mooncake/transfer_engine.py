"""Mooncake's transfer engine as wsm uses it: memory registered, reads begun, looked at and ended.

The only module that imports it, and where what it does is written down. Seen with 0.3.13 over TCP:

* A read is begun with ``batch_transfer_async_read`` and looked at with ``transfer_check_status``, which sees
  the first request of a batch only: so one request per batch. The calls that wait spin on a core, cannot be
  ended, and take at least 5 s to give up; none of them is used.
* Memory that a read in flight may write belongs to it until the engine is gone. Destroying the engine ends
  what is in flight, and nothing is written afterwards. It stops every Python thread for as long as the engine
  waits for handshakes: 1 s, which we shorten to 50 ms. Where it waits already it goes on for as long as it
  began to, so we come by once and hang up, which it takes for nothing.
* Finding a peer takes a handshake that a stopped process leaves unanswered for 60 s; a thread waits for it.
* Registering is quadratic: ten thousand regions take 12 s, so small tensors share one. Overlapping regions
  are refused. Reading over TCP needs no registration of what is read into; it would let others write there,
  so it is not done.
* It listens on two ports (15000 to 17000) on all addresses, whatever ``MC_TCP_BIND_ADDRESS`` says (that is
  what it tells others of itself), does not authenticate its peers, and lets them read and write whatever is
  registered. On a loopback host both sockets are tied to the loopback interface before any memory is
  registered, and a peer that connected from elsewhere before that is cut off; neither is inherited by child
  processes, which the engine would allow. Of users of this host nothing can keep it.
* It writes to standard error; ``MC_LOG_LEVEL`` is set to ``ERROR`` unless the environment says otherwise.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from wsm import log
from wsm.errors import RefusedError
from wsm.strategies.errors import listed
from wsm.strategies.mooncake.source import EngineSettings

# One for handshakes, one for data.
_LISTENING = 2
# struct timeval: how long the engine waits for a handshake before it looks whether it is to end.
_ACCEPT_TIME = struct.pack("@ll", 0, 50_000)
# Where the engine looks for free ports.
_PORTS = range(12001, 18001)
# How long we try to; without it an end may take a second.
_COME_BY_S = 0.5
# How long a wait lasts before a read is looked at again.
_GLANCE_S = 0.0005
# How long a wait for a peer lasts before it is asked whether to go on.
_LOOK_S = 0.02

_log = log.logger("strategies")

_LIBRARY = re.compile(r"(lib[\w+-]+\.so[\w.]*): cannot open shared object file")


class Engine:
    """One engine that runs. Any thread may use it; :meth:`close` when none does any more.

    Parameters
    ----------
    settings : EngineSettings
        How it is reached.

    Attributes
    ----------
    session : str
        ``host:port``, the name that peers find it by.

    Raises
    ------
    RefusedError
        If it cannot be imported.
    RefusedError
        If it does not start.
    RefusedError
        If it cannot be kept to this host.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        made, others = _engine_class()(), set(_sockets().values())
        code = made.initialize(settings.host, "P2PHANDSHAKE", settings.protocol, settings.device)
        if code != 0:
            raise RefusedError(
                f"the transfer engine does not start on {settings.host} with protocol {settings.protocol!r}, "
                f"device {settings.device!r} (code {code}); set MC_LOG_LEVEL=INFO and read what it writes to "
                "standard error",
                code="engine-not-started",
                host=settings.host,
                protocol=settings.protocol,
                device=settings.device,
                engine_code=code,
            )
        self._engine: Any = made
        self._ports: frozenset[int] = frozenset()
        self.session = f"{settings.host}:{made.get_rpc_port()}"
        found = _seclude(others, made.get_rpc_port(), loopback=settings.loopback)
        if settings.loopback and settings.protocol == "tcp" and len(found) < _LISTENING:
            self.close()
            raise RefusedError(
                f"only {len(found)} of the two sockets that the transfer engine listens on were found at "
                f"ports {_PORTS.start} to {_PORTS.stop - 1}, so they cannot be kept to this host; unset "
                "MC_MIN_RPC_PORT and MC_MAX_RPC_PORT, or give the address of this host instead of a "
                "loopback one",
                code="engine-exposed",
                found=len(found),
                ports=(_PORTS.start, _PORTS.stop - 1),
            )
        if settings.loopback:
            self._ports = found
        else:
            _log.warning("engine.reachable", host=settings.host, ports=sorted(found), by="every network")
        with suppress(OSError):
            socket.create_connection((settings.host, made.get_rpc_port()), timeout=_COME_BY_S).close()
        _cut_off(self._ports)

    def register(self, address: int, nbytes: int) -> None:
        """Let peers read memory, which must stay there until it is unregistered. Blocks.

        Raises
        ------
        RefusedError
            If it overlaps with what is registered, or the engine cannot take it.
        """
        _cut_off(self._ports)  # who had connected, and was not taken yet, when the engine started
        code = self._engine.register_memory(address, nbytes)
        if code != 0:
            raise RefusedError(
                f"the transfer engine does not register {nbytes} bytes (code {code}); with RDMA look at the "
                "limit of locked memory (ulimit -l)",
                code="memory-not-registered",
                nbytes=nbytes,
                engine_code=code,
            )

    def register_destination(self, memory: memoryview) -> None:
        """Make it possible to read into `memory`, where the protocol asks for that (TCP does not)."""
        if self._settings.protocol != "tcp":
            self.register(address_of(memory), memory.nbytes)

    def unregister(self, address: int) -> None:
        """Let peers read the memory that begins there no more."""
        self._engine.unregister_memory(address)

    def find(self, peer: str, remote: int, timeout_s: float, go_on: Callable[[], None]) -> bool | None:
        """Read one byte at address `remote` of `peer`, to know it from now on. Blocks, `timeout_s` at most.

        Meanwhile `go_on` is called again and again; what it raises ends the wait, and the engine's worth.

        Returns
        -------
        bool or None
            False if it is not there or does not let us read that; None if it does not answer. An engine that
            was not answered is worth no more: close it.
        """
        engine, scratch = self._engine, memoryview(bytearray(1))
        self.register_destination(scratch)
        tickets: list[int] = []

        def begin() -> None:
            # It may hang here long after we have given up, so it holds what it needs.
            tickets.append(engine.batch_transfer_async_read(peer, [address_of(scratch)], [remote], [1]))

        # No daemon: the engine aborts the process if that ends while a call is in it.
        thread = threading.Thread(target=begin, name="wsm-mooncake-find")
        deadline_s = time.monotonic() + timeout_s
        thread.start()
        while thread.is_alive() and time.monotonic() < deadline_s:
            thread.join(_LOOK_S)
            go_on()
        while tickets and time.monotonic() < deadline_s:
            done = self.done(tickets[0]) if tickets[0] else False
            if done is not None:
                return done
            threading.Event().wait(_GLANCE_S)
            go_on()
        return None

    def read(self, peer: str, remote: int, memory: memoryview) -> int:
        """Begin to read from address `remote` of `peer` into `memory`; 0 if that cannot be. Does not block.

        `memory` belongs to the engine until :meth:`done` says so, or it is closed.
        """
        ticket: int = self._engine.batch_transfer_async_read(
            peer, [address_of(memory)], [remote], [memory.nbytes]
        )
        return ticket

    def done(self, ticket: int) -> bool | None:
        """Whether a read has succeeded; None while it goes on. Ask no more once it is not None."""
        status: int = self._engine.transfer_check_status(ticket)
        return None if status == 0 else status == 1

    def close(self) -> None:
        """End what is in flight; memory is written no more when this returns. Idempotent."""
        self._engine = None


def address_of(memory: memoryview) -> int:
    """Return the address of the first byte of `memory`, which may be read-only."""
    import numpy as np  # noqa: PLC0415 - a tenth of a second for those who never transfer

    return int(np.frombuffer(memory, np.uint8).ctypes.data) if memory.nbytes else 0


def _engine_class() -> Any:
    # Read by the library when it is loaded; there is no other way to say it.
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        from mooncake.engine import TransferEngine  # noqa: PLC0415 - an optional dependency of 50 MB
    except ImportError as error:
        missing = _LIBRARY.findall(str(error))
        fix = "install wsm[mooncake]"
        if missing:
            fix = (
                f"system libraries are missing: {listed(missing)} "
                "(Debian: apt-get install libibverbs1 librdmacm1 libnuma1 liburing2 libcurl4)"
            )
        text = f"Mooncake's transfer engine cannot be loaded ({error}); {fix}"
        raise RefusedError(
            text, code="mooncake-missing", reason=str(error), missing=tuple(missing)
        ) from error
    return TransferEngine


def _seclude(others: set[int], rpc_port: int, *, loopback: bool) -> frozenset[int]:
    """Keep the engine's listening sockets from child processes, from delaying its end, and, if `loopback`,
    from other hosts. Returns the ports of those that were found.

    `others` are the process's own sockets from before. One of the engine's is known by its port, the other is
    one for IPv6, as few others are; what another thread opens just now, just so, is taken for it, too.
    """
    ports = set()
    for descriptor, inode in _sockets().items():
        if inode in others:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            address, port = found.getsockname()[:2]
            known = address == "0.0.0.0" and port == rpc_port  # noqa: S104 - what the engine bound, to be narrowed
            if known or (address == "::" and port in _PORTS):
                os.set_inheritable(descriptor, False)
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _ACCEPT_TIME)
                if loopback:
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                ports.add(port)
    return frozenset(ports)


def _cut_off(ports: frozenset[int]) -> None:
    """End what came to these ports of ours from another host."""
    for descriptor in _sockets() if ports else ():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            if (
                found.family in (socket.AF_INET, socket.AF_INET6)
                and found.getsockname()[1] in ports
                and not _is_loopback(found.getpeername()[0])
            ):
                found.shutdown(socket.SHUT_RDWR)


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _sockets() -> dict[int, int]:
    """Return the descriptors of this process that are sockets, with their inodes."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - descriptors, not files
        with suppress(OSError):  # the one that lists them is gone by now
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found
