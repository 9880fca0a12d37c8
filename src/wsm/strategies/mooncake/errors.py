"""What can go wrong with versions that travel by Mooncake's transfer engine, beside the errors of any stream.

Silence, death and unusable messages of a peer are in :mod:`wsm.strategies.messages.errors`. ``touched`` says
whether the target's memory may have been written.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError
from wsm.strategies.errors import listed


def mooncake_missing(*, reason: str, missing: Sequence[str]) -> RefusedError:
    """The transfer engine cannot be imported: the package, or a system library of it, is not there."""
    what = (
        f"system libraries are missing: {listed(missing)} "
        "(Debian: apt-get install libibverbs1 librdmacm1 libnuma1 liburing2 libcurl4)"
        if missing
        else "install wsm[mooncake]"
    )
    return RefusedError(
        f"Mooncake's transfer engine cannot be loaded ({reason}); {what}",
        code="mooncake-missing",
        reason=reason,
        missing=tuple(missing),
    )


def bad_engine_settings(*, field: str, value: object, problem: str) -> BadInputError:
    """The transfer engine was given a host, protocol or device that cannot be."""
    return BadInputError(
        f"mooncake: {field} {value!r} {problem}",
        code="bad-engine-settings",
        field=field,
        value=value,
        problem=problem,
    )


def engine_not_started(*, host: str, protocol: str, device: str, code: int) -> RefusedError:
    """The transfer engine does not start; its own log says why."""
    return RefusedError(
        f"the transfer engine does not start on {host} with protocol {protocol!r}, device {device!r} "
        f"(code {code}); set MC_LOG_LEVEL=INFO and read what it writes to standard error",
        code="engine-not-started",
        host=host,
        protocol=protocol,
        device=device,
        engine_code=code,
    )


def engine_exposed(*, found: int, ports: tuple[int, int]) -> RefusedError:
    """The transfer engine was to be reached from this host only, and listens where that cannot be seen to."""
    return RefusedError(
        f"only {found} of the two sockets that the transfer engine listens on were found at ports "
        f"{ports[0]} to {ports[1]}, so they cannot be kept to this host; unset MC_MIN_RPC_PORT and "
        "MC_MAX_RPC_PORT, or give the address of this host instead of a loopback one",
        code="engine-exposed",
        found=found,
        ports=ports,
    )


def memory_not_registered(*, nbytes: int, code: int) -> RefusedError:
    """The transfer engine does not take memory."""
    return RefusedError(
        f"the transfer engine does not register {nbytes} bytes (code {code}); with RDMA look at the "
        "limit of locked memory (ulimit -l)",
        code="memory-not-registered",
        nbytes=nbytes,
        engine_code=code,
    )


def transfer_failed(*, peer: str, nbytes: int, touched: bool) -> GroupError:
    """The transfer engine could not read from a peer that lives and still publishes."""
    return GroupError(
        f"the transfer engine could not read {nbytes} bytes from {peer}; load again, and if it stays so "
        "set MC_LOG_LEVEL=INFO and read what the engine writes to standard error on both sides",
        code="transfer-failed",
        peer=peer,
        nbytes=nbytes,
        touched=touched,
    )


def lease_lost(*, peer: str, version: str, lease_s: float, touched: bool) -> GroupError:
    """The publisher no longer holds its memory still for this rank: it took longer than its lease."""
    return GroupError(
        f"{peer} no longer keeps version {version} for this rank, which did not renew its lease of "
        f"{lease_s:.3g} s; give the publisher a longer lease_s, or load again",
        code="lease-lost",
        peer=peer,
        version=version,
        lease_s=lease_s,
        touched=touched,
    )


def publication_held(*, version: str, ranks: Sequence[int], waited_s: float) -> RefusedError:
    """A published version cannot be withdrawn yet: ranks are reading it."""
    return RefusedError(
        f"version {version} is still being read by ranks {list(ranks)} after {waited_s:.3g} s; its "
        "tensors must not change yet. Wait longer, or withdraw with revoke=True",
        code="publication-held",
        retryable=True,
        version=version,
        ranks=tuple(ranks),
        waited_s=waited_s,
    )
