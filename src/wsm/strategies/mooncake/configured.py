"""A rank's transport, made of what a configuration says of Mooncake's engine."""

from __future__ import annotations

from wsm.strategies.mooncake.mooncake_transport import MooncakeTransport
from wsm.strategies.mooncake.source import MooncakeConfig
from wsm.strategies.mooncake.transfer_engine import EngineSettings
from wsm.strategies.sections import Sections
from wsm.strategies.transports.transport import TransportKind


def _mooncake(sections: Sections) -> MooncakeTransport:
    section = sections.of(MooncakeConfig)
    return MooncakeTransport(
        section.address,
        settings=EngineSettings(section.host, section.protocol, section.device),
        connect_s=section.connect_s,
        silence_s=section.silence_s,
    )


MOONCAKE = TransportKind(_mooncake)
