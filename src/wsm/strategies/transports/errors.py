"""What can go wrong with a transport that brings versions by their number, and with what it hands over.

``touched`` says whether the target's memory may have been written. A silent or failing peer is told by the
errors of :mod:`wsm.strategies.messages.errors`, the same for all transports.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError
from wsm.strategies.errors import listed


def transport_package_unusable(*, package: str, problem: str) -> RefusedError:
    """The package of the configured transport is not installed, or is not the one that wsm knows."""
    return RefusedError(
        f"the transport needs the package {package}: {problem}; install the wheel that your platform "
        "provides (it is not on PyPI), or configure the transport mooncake",
        code="transport-package-unusable",
        package=package,
        problem=problem,
    )


def bad_transport_option(*, option: str, problem: str, fix: str) -> BadInputError:
    """An option of a transport is unknown or has an impossible value."""
    return BadInputError(
        f"rsync_config: {option!r} {problem}; {fix}",
        code="bad-transport-option",
        option=option,
        problem=problem,
    )


def transport_unknown(*, name: str, known: Sequence[str]) -> BadInputError:
    """A configuration names a transport that does not exist."""
    return BadInputError(
        f"no transport is called {name!r}; use one of {listed(known)}",
        code="transport-unknown",
        name=name,
        known=tuple(known),
    )


def version_unnamed(*, transport: str) -> BadInputError:
    """Neither the command nor a ``version.yaml`` says which version is meant."""
    return BadInputError(
        f"{transport} brings versions by their labels and was told none; name the version in the command, or "
        "give rsync: directory, whose version.yaml announces one or which one is published into",
        code="version-unnamed",
        unfit=True,
        transport=transport,
    )


def unverified_stream(*, peer: str, first: str) -> BadInputError:
    """A stream promises no digests, and the configuration asks for verification. Nothing was changed."""
    return BadInputError(
        f"{peer} sent {first!r} first and no manifest, so nothing it brings can be verified; send "
        "wsm.strategies.with_manifest(state) there, or configure verify_checksum: false",
        code="unverified-stream",
        unfit=True,
        peer=peer,
        first=first,
    )


def foreign_tensor(*, peer: str, tensor: str, problem: str, touched: bool = False) -> BadInputError:
    """A transport handed over something that is no tensor wsm can apply."""
    return BadInputError(
        f"{peer} handed over {tensor!r}, which cannot be applied: {problem}; "
        "send contiguous tensors of the model's own dtypes",
        code="foreign-tensor",
        unfit=True,
        peer=peer,
        tensor=tensor,
        problem=problem,
        touched=touched,
    )


def unpromised_tensor(
    *, peer: str, tensor: str, found: str, promised: str, touched: bool = False
) -> BadInputError:
    """A stream brings a tensor that its own manifest does not list, or describes otherwise."""
    return BadInputError(
        f"{peer} brought {tensor!r} as {found}, its manifest promised {promised}; "
        "send what the manifest was made from",
        code="unpromised-tensor",
        unfit=True,
        peer=peer,
        tensor=tensor,
        found=found,
        promised=promised,
        touched=touched,
    )


def transfer_too_long(*, peer: str, limit_s: float, tensors: int, touched: bool = False) -> GroupError:
    """A transfer as a whole was waited for longer than it may be, although something always came."""
    return GroupError(
        f"{peer} had not brought everything after {limit_s:.3g} s of waiting, {tensors} tensors came; "
        "raise session_total_timeout_s, or look at what slows the transfer down",
        code="transfer-too-long",
        peer=peer,
        limit_s=limit_s,
        tensors=tensors,
        touched=touched,
    )


def files_without_directory() -> BadInputError:
    """The transport ``files`` is configured without the directory that it reads."""
    return BadInputError(
        "rsync.transport: files reads versions where they are published, and no directory is named; "
        "give rsync: {directory: ...}",
        code="files-without-directory",
    )
