"""What can go wrong with a transport that brings versions by their number, and with what it hands over.

``touched`` says whether the target's memory may have been written. A silent or failing peer is told by the
errors of :mod:`wsm.strategies.peer_errors`, the same for all transports.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, NoRoomError, RefusedError, coded
from wsm.printable import counted
from wsm.strategies.errors import listed


@coded("transport-package-unusable")
def transport_package_unusable(*, package: str, problem: str) -> RefusedError:
    """The package of the configured transport is not installed, or is not the one that wsm knows."""
    return RefusedError(
        f"the transport needs the package {package}: {problem}; install the wheel that your platform "
        "provides (it is not on PyPI), or configure the transport mooncake"
    )


def bad_transport_option(*, option: str, problem: str, fix: str) -> BadInputError:
    """An option of a transport is unknown or has an impossible value."""
    return BadInputError(
        f"rsync_config: {option!r} {problem}; {fix}",
        code="bad-transport-option",
        option=option,
        problem=problem,
    )


@coded("transport-unknown")
def transport_unknown(*, name: str, known: Sequence[str]) -> BadInputError:
    """A configuration names a transport that does not exist."""
    return BadInputError(f"no transport is called {name!r}; use one of {listed(known)}", known=tuple(known))


@coded("version-unnamed")
def version_unnamed(*, transport: str) -> BadInputError:
    """Neither the command nor a ``version.yaml`` says which version is meant."""
    return BadInputError(
        f"{transport} brings versions by their labels and was told none; name the version in the command, or "
        "give rsync: directory, whose version.yaml announces one or which one is published into",
        unfit=True,
    )


@coded("unverified-stream")
def unverified_stream(*, peer: str, first: str) -> BadInputError:
    """A stream promises no digests, and the configuration asks for verification. Nothing was changed."""
    return BadInputError(
        f"{peer} sent {first!r} first and no manifest, so nothing it brings can be verified; send "
        "wsm.strategies.with_manifest(state) there, or configure verify_checksum: false",
        unfit=True,
    )


@coded("foreign-tensor")
def foreign_tensor(*, peer: str, tensor: str, problem: str, touched: bool = False) -> BadInputError:
    """A transport handed over something that is no tensor wsm can apply."""
    return BadInputError(
        f"{peer} handed over {tensor!r}, which cannot be applied: {problem}; "
        "send contiguous tensors of the model's own dtypes",
        unfit=True,
        touched=touched,
    )


@coded("unpromised-tensor")
def unpromised_tensor(
    *, peer: str, tensor: str, found: str, promised: str, touched: bool = False
) -> BadInputError:
    """A stream brings a tensor that its own manifest does not list, or describes otherwise."""
    return BadInputError(
        f"{peer} brought {tensor!r} as {found}, its manifest promised {promised}; "
        "send what the manifest was made from",
        unfit=True,
        touched=touched,
    )


@coded("transfer-too-long")
def transfer_too_long(*, peer: str, limit_s: float, tensors: int, touched: bool = False) -> GroupError:
    """A transfer as a whole was waited for longer than it may be, although something always came."""
    return GroupError(
        f"{peer} had not brought everything after {limit_s:.3g} s of waiting, {tensors} tensors came; "
        "raise session_total_timeout_s, or look at what slows the transfer down",
        touched=touched,
    )


@coded("check-needs-memory")
def check_needs_memory(*, needed: int, available: int, ranks: int) -> NoRoomError:
    """A version is to be collected in host memory before it is applied, and the shards do not fit it."""
    return NoRoomError(
        f"rsync: {{check: whole}} collects a version in host memory before the model is touched: {needed} "
        f"bytes for {counted(ranks, 'rank')}, and {available} are available within the limits on this "
        "process; give it more, or say rsync: {check: as_it_comes}, where a stream that does not fit costs "
        "the weights"
    )


def files_without_directory() -> BadInputError:
    """The transport ``files`` is configured without the directory that it reads."""
    return BadInputError(
        "rsync.transport: files reads versions where they are published, and no directory is named; "
        "give rsync: {directory: ...}",
        code="files-without-directory",
    )
