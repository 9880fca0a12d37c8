"""What can go wrong with a transport that brings versions by their number, and with what it hands over.

``touched`` says whether the target's memory may have been written. A silent or failing peer is told by the
errors of :mod:`wsm.strategies.messages.errors`, the same for everybody who brings weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, RefusedError
from wsm.strategies.file_errors import listed


class TransportPackageError(RefusedError):
    """The package of the configured transport is not installed, or is not the one that wsm knows."""

    def __init__(self, *, package: str, problem: str) -> None:
        super().__init__(
            f"the transport needs the package {package}: {problem}; install the wheel that your platform "
            "provides (it is not on PyPI), or configure the transport mooncake",
            package=package,
            problem=problem,
        )


class TransportOptionError(BadInputError):
    """An option of a transport is unknown or has an impossible value."""

    def __init__(self, *, option: str, problem: str, fix: str) -> None:
        super().__init__(f"rsync_config: {option!r} {problem}; {fix}", option=option, problem=problem)


class TransportUnknownError(BadInputError):
    """A configuration names a transport that does not exist."""

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no transport is called {name!r}; use one of {listed(known)}", name=name, known=tuple(known)
        )


class VersionUnnamedError(BadInputError):
    """Nobody says which version is meant: not the command, and no ``version.yaml``."""

    def __init__(self, *, transport: str) -> None:
        super().__init__(
            f"{transport} brings versions by number and was told none; name the version in the command, or "
            "give rsync: directory, whose version.yaml announces one",
            transport=transport,
        )


class UnverifiedStreamError(BadInputError):
    """A stream promises no digests, and the configuration asks for verification. Nothing was changed."""

    def __init__(self, *, peer: str, first: str) -> None:
        super().__init__(
            f"{peer} sent {first!r} first and no manifest, so nothing it brings can be verified; send "
            "wsm.strategies.with_manifest(state) there, or configure verify_checksum: false",
            peer=peer,
            first=first,
        )


class ForeignTensorError(BadInputError):
    """A transport handed over something that is no tensor wsm can apply."""

    def __init__(self, *, peer: str, tensor: str, problem: str, touched: bool = False) -> None:
        super().__init__(
            f"{peer} handed over {tensor!r}, which cannot be applied: {problem}; "
            "send contiguous tensors of the model's own dtypes",
            peer=peer,
            tensor=tensor,
            problem=problem,
            touched=touched,
        )


class UnpromisedTensorError(BadInputError):
    """A stream brings a tensor that its own manifest does not list, or describes otherwise."""

    def __init__(self, *, peer: str, tensor: str, found: str, promised: str, touched: bool = False) -> None:
        super().__init__(
            f"{peer} brought {tensor!r} as {found}, its manifest promised {promised}; "
            "send what the manifest was made from",
            peer=peer,
            tensor=tensor,
            found=found,
            promised=promised,
            touched=touched,
        )


class TransferTooLongError(GroupError):
    """A transfer as a whole was waited for longer than it may be, although something always came."""

    def __init__(self, *, peer: str, limit_s: float, tensors: int, touched: bool = False) -> None:
        super().__init__(
            f"{peer} had not brought everything after {limit_s:.3g} s of waiting, {tensors} tensors came; "
            "raise session_total_timeout_s, or look at what slows the transfer down",
            peer=peer,
            limit_s=limit_s,
            tensors=tensors,
            touched=touched,
        )
