"""What arrivals from a process that listens have in common, whatever it says to the ranks that come."""

from __future__ import annotations

from collections.abc import Mapping

from wrongs import BY_STATE, Expected, State, Wrong, make_state, wrong_state

from tests.forkserver import WITHOUT_PADDLE, Forked
from wsm.strategies import errors
from wsm.strategies import peer_errors as stream_errors


class PeerArrival:
    """Each way of being wrong that names, dtypes and shapes do not show is a method of its name."""

    def __init__(self) -> None:
        self._process: Forked | None = None

    def publish(self, version: int, state: State, *, finite: bool = False) -> None:
        raise NotImplementedError

    def publish_wrong(self, version: int, state: State, wrong: Wrong) -> Expected:
        if wrong in BY_STATE:
            self.publish(version, wrong_state(state, wrong))
            return BY_STATE[wrong]
        return getattr(self, f"_{wrong.name.lower()}")(version, state)

    def _start_dying(self, program: str, *arguments: str) -> None:
        """Start a trainer that kills itself on the way; return when it listens."""
        self._process = WITHOUT_PADDLE.start("-c", program, *arguments, stderr=None)
        assert self._process.stdout.readline() == b"listening\n"

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class AddressArrival(PeerArrival):
    """From a trainer of ours at an address, which says beforehand what it will bring."""

    declared = True
    #: What errors call who listens there, and what they say of bytes that are no message.
    _called: str
    _said_of_garbage = "damaged"

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._connect_s = 60.0

    def publish(self, version: int, state: State, *, finite: bool = False) -> None:
        other = make_state(seed=version + 1000, finite=finite)
        self._hand_over(version, {0: state, 1: other}, finite=finite)

    def _hand_over(self, version: int, shards: Mapping[int, State], *, finite: bool = False) -> None:
        raise NotImplementedError

    def _described(self, version: int, state: State) -> bytes:
        """What a right trainer answers a rank that asks, with memory that can really be read."""
        raise NotImplementedError

    def _answer(self, *data: bytes) -> None:
        """Answer whatever a rank asks with these bytes, and say nothing else."""
        raise NotImplementedError

    def _flipped_bit_in_description(self, version: int, state: State) -> Expected:
        data = bytearray(self._described(version, state))
        data[99] ^= 1
        self._answer(bytes(data))
        return Expected(stream_errors.peer_message, (self._address, "damaged"))

    def _truncated_description(self, version: int, state: State) -> Expected:
        self._answer(self._described(version, state)[:-7] + bytes(7))  # as long as it announces to be
        return Expected(stream_errors.peer_message, (self._address, "damaged"))

    def _garbage(self, version: int, state: State) -> Expected:
        self._answer(b"no weights today, and no message either")
        return Expected(stream_errors.peer_message, (self._address, self._said_of_garbage))

    def _peer_silent(self, version: int, state: State) -> Expected:
        self._connect_s = 0.3
        self._answer()
        return Expected(stream_errors.PeerSilentError, (self._address, "said nothing", "its offer was due"))

    def _nothing_there(self, version: int, state: State) -> Expected:
        self._connect_s = 0.3
        nobody = (self._address, f"no process answered for the {self._called}", "its offer was due")
        return Expected(stream_errors.PeerSilentError, nobody)

    def _other_version(self, version: int, state: State) -> Expected:
        self.publish(version + 1, state)
        return Expected(errors.VersionMismatchError, (self._address, f"version {version + 1}"))

    def _other_world(self, version: int, state: State) -> Expected:
        self._hand_over(version, {0: state})
        return Expected(errors.shard_identity, (self._address, "world size 1", "world size 2"))
