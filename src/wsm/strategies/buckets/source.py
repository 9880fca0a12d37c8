"""Where buckets come from: what a configuration says, one rank's way, and the module of the sockets."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from types import ModuleType

from wsm.config_reading import OptionFault, typed_section
from wsm.errors import RefusedError, remedy
from wsm.typed import Count, CountFrom0, Seconds, typed


@typed_section
@dataclass(frozen=True)
class IpcAsyncConfig:
    """Where the ``ipc_async`` strategy asks.

    Parameters
    ----------
    address : str
        The trainer's, one for all ranks: ``ipc:///absolute/path`` or ``tcp://127.0.0.1:port``.
    connect_s : float
        Seconds to wait for the trainer to offer a version.
    silence_s : float
        Seconds that it may say and write nothing once it has: so long may a tensor take it. And that one
        which ended before may take to come back.
    memory_directory : str, optional
        Where shared memory lies; in the private directory of this user by default.
    """

    address: str = ""
    _: KW_ONLY
    connect_s: Seconds = 60.0
    silence_s: Seconds = 10.0
    memory_directory: str | None = None

    def fault(self, ranks: int, *, used: bool) -> OptionFault | None:  # noqa: ARG002 - the same for any number
        """Return the first option that cannot be; see :class:`wsm.strategies.strategy.CheckedSection`."""
        if used and not self.address:
            fix = "give the trainer's, ipc:///absolute/path or tcp://127.0.0.1:port"
            return OptionFault("address", "is missing", fix)
        return None


@typed
@dataclass(frozen=True)
class IpcAsyncSource(IpcAsyncConfig):
    """One rank's way to the trainer that sends buckets.

    Parameters
    ----------
    rank : int
        Global rank of the shard.
    world_size : int, optional
        Number of ranks that the trainer must send for; not checked if not given.
    address, connect_s, silence_s, memory_directory
        As for :class:`IpcAsyncConfig`.
    """

    rank: CountFrom0 = 0
    world_size: Count | None = None


def sockets() -> ModuleType:
    """Return :mod:`wsm.strategies.buckets.channel`; RefusedError where it cannot be imported."""
    try:
        from wsm.strategies.buckets import channel  # noqa: PLC0415 - only who streams needs pyzmq
    except ModuleNotFoundError as error:
        text = "ipc_async takes the package pyzmq; install wsm[ipc-async]"
        raise RefusedError(text, code="pyzmq-missing") from error
    except OSError as error:
        text = f"the sockets of ipc_async cannot be imported: {error}; {remedy(error) or 'ask again'}"
        raise RefusedError(text, code="pyzmq-unreadable") from error
    return channel
