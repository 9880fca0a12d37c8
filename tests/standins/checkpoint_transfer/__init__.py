"""A stand-in for the closed package CheckpointTransfer: its interface, over real sockets on this host.

``CheckpointTransfer`` here is :class:`FakeCheckpointTransfer`, with the receiving calls that FastDeploy makes
and the sending ones that its publisher makes. The sender listens at ``redis_host:redis_port``; buckets travel
over TCP into buffers that are used again. A sender can be made to lie, die, be silent, or send for ever.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the receiving end, and paddle with it, only for whoever receives."""
    if name == "CheckpointTransfer":
        from checkpoint_transfer.stream import FakeCheckpointTransfer  # noqa: PLC0415 - paddle's second

        return FakeCheckpointTransfer
    raise AttributeError(name)
