"""What a configuration says of Mooncake's engine."""

from __future__ import annotations

from dataclasses import dataclass

from wsm.config_reading import typed_section
from wsm.typed import Seconds


@typed_section
@dataclass(frozen=True)
class MooncakeConfig:
    """How ``rsync`` reaches a :class:`wsm.strategies.MooncakePublisher`, if its transport is ``mooncake``.

    Parameters
    ----------
    address : str
        The publisher's, one for all ranks: ``tcp://IPv4:port`` or ``ipc:///absolute/path``.
    connect_s : float
        Seconds to wait for it to have a version.
    silence_s : float
        Seconds that it may say nothing, and that no read may end; and that one which ended before it had
        granted anything may take to come back.
    host : str
        The IPv4 address of this host that the publisher's engine reaches ours at.
    protocol : str
        ``tcp``; or ``rdma``, which has not been run by us.
    device : str
        RDMA devices, separated by commas; empty for all.
    """

    address: str = ""
    connect_s: Seconds = 60.0
    silence_s: Seconds = 10.0
    host: str = "127.0.0.1"
    protocol: str = "tcp"
    device: str = ""
