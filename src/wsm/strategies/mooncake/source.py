"""What a configuration says of Mooncake's engine."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from wsm.config_reading import typed_section
from wsm.typed import Seconds, typed

_OCTET = "(25[0-5]|(2[0-4]|1[0-9]|[1-9])?[0-9])"
_IPv4: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A({_OCTET}\.){{3}}{_OCTET}\Z", description="that is an IPv4 address of this host")
]


@typed
@dataclass(frozen=True)
class EngineSettings:
    """How an engine is reached, and by what.

    Parameters
    ----------
    host : str
        The IPv4 address of this host that peers reach it at. A loopback address keeps all other hosts out.
    protocol : str
        ``tcp``; or ``rdma``, which has not been run by us.
    device : str
        RDMA devices, separated by commas; empty for all.
    """

    host: _IPv4 = "127.0.0.1"
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this host is meant to reach it."""
        return IPv4Address(self.host).is_loopback


@typed_section
@dataclass(frozen=True)
class MooncakeConfig(EngineSettings):
    """How ``rsync`` reaches a :class:`wsm.strategies.MooncakePublisher`, if its transport is ``mooncake``.

    Parameters
    ----------
    host, protocol, device
        This rank's engine: as for :class:`wsm.strategies.EngineSettings`.
    address : str
        The publisher's, one for all ranks: ``tcp://IPv4:port`` or ``ipc:///absolute/path``.
    connect_s : float
        Seconds to wait for it to have a version.
    silence_s : float
        Seconds that it may say nothing, and that no read may end; and that one which ended before it had
        granted anything may take to come back.
    """

    address: str = ""
    connect_s: Seconds = 60.0
    silence_s: Seconds = 10.0
