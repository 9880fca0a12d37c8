"""What can go wrong between a trainer and a rank that talk to each other, whatever the transport.

``peer`` names the other side: an address, or a rank behind it. ``touched`` says whether the target's memory
may have been written, as a load stamps it. The worker's side raises these from a load, the trainer's side
from a send.
"""

from __future__ import annotations

from wsm.errors import BadInputError, GroupError, UnfitError, coded


@coded("peer-message")
def peer_message(*, peer: str, problem: str) -> BadInputError:
    """A peer sent something that is no message, or none that is due now."""
    return UnfitError(
        f"{peer} sent an unusable message: {problem}; run the same version of wsm on both sides"
    )


class PeerSilentError(GroupError):
    """A peer said nothing for longer than it may; `met` is False if no process has ever been there."""

    def __init__(self, *, peer: str, waited_s: float, expected: str, met: bool = True) -> None:
        super().__init__(
            f"{peer} said nothing for {waited_s:.3g} s, {expected} was due; "
            "look whether it lives and is sending, or give it more time"
            if met
            else f"no process answered for {peer} in {waited_s:.3g} s, {expected} was due; "
            "start it, or correct the address on one of the two sides",
            peer=peer,
            waited_s=waited_s,
            expected=expected,
            met=met,
        )


class PeerDiedError(GroupError):
    """A peer ended before it was done; `absent_s` is for how long its successor was waited for, if it was."""

    def __init__(self, *, peer: str, expected: str, absent_s: float | None = None) -> None:
        when = (
            "in the middle of the stream"
            if absent_s is None
            else f"and no process took its place for {absent_s:.3g} s"
        )
        super().__init__(
            f"{peer} has ended {when}, {expected} was due; start it again and repeat",
            peer=peer,
            expected=expected,
            absent_s=absent_s,
        )


class PeerFailedError(GroupError):
    """A peer gave up and said why; `error` is the type of its own error, `reason` its text."""

    def __init__(self, *, peer: str, error: str, reason: str) -> None:
        super().__init__(
            f"{peer} gave up: {error}: {reason}",
            peer=peer,
            error=error,
            reason=reason,
        )


@coded("send-cancelled")
def send_cancelled(*, address: str, version: str) -> GroupError:
    """The trainer no longer wants to send."""
    return GroupError(
        f"sending version {version} at {address} was cancelled; ranks that were receiving it were told"
    )
