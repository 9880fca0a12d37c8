"""What a scheduler offers to an action: the surface that every engine has, and four that it may have.

Beside :mod:`.surfaces`. Nothing here knows about words, states or commands.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class RequestSurface(Protocol):
    """The scheduler of one rank, as far as a weight change concerns it."""

    def stop_admitting(self) -> None:
        """Admit no new request until :meth:`resume_admitting`; queued ones wait. Idempotent."""
        ...

    def resume_admitting(self) -> None:
        """Admit requests again. Idempotent."""
        ...

    def in_flight(self) -> int:
        """Count the live requests that hold a slot (never stale markers: FastDeploy#7825)."""
        ...

    def abort_all(self) -> int:
        """End every running request now, answer it with what it has so far; return how many."""
        ...

    def reset_inputs(self) -> None:
        """Forget every cached input tensor of the last batch (FastDeploy#7744). Idempotent."""
        ...


@runtime_checkable
class FreezingRequestSurface(RequestSurface, Protocol):
    """A scheduler that can set running requests aside and go on with them later.

    Needed for ``InFlightPolicy.KEEP``, which is refused before anything is touched where it is not there.
    """

    def freeze(self) -> int:
        """Take every running request off its slot and blocks, to be prefilled anew; return how many."""
        ...


@runtime_checkable
class HoldingRequestSurface(FreezingRequestSurface, Protocol):
    """A scheduler that can set running requests aside together with their KV blocks.

    Needed for ``KVPolicy.KEEP_IN_FLIGHT``; used under ``KVPolicy.KEEP`` where it is there.
    """

    def hold(self) -> int:
        """Take every running request off its slot, with its blocks; return how many.

        :meth:`resume_admitting` puts them back. Whoever's blocks were forgotten meanwhile is prefilled anew.
        """
        ...


@runtime_checkable
class KnownAdmission(RequestSurface, Protocol):
    """A scheduler that can say whether it admits requests. Of one that cannot, it is believed."""

    def is_admitting(self) -> bool:
        """Whether new requests are admitted now."""
        ...


@runtime_checkable
class LosableRequests(RequestSurface, Protocol):
    """A scheduler that can tell its clients that a rank was lost. One that cannot answers as for an abort."""

    def lose_all(self) -> int:
        """Answer every running request with an error that says "ask again"; return how many."""
        ...
