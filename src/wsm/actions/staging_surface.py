"""What weights offer that can hold a second version beside the one that serves, for a hot update.

Beside :mod:`.surfaces`: an engine may do without, and is then refused hot updates. Nothing here imports
paddle or knows about words, states or commands.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from wsm.strategies.tensor import WeightTarget


class StagedWeights(WeightTarget, Protocol):
    """One version that is being staged beside the served one; also the target of its load.

    Loaded, made ready and given back by a thread beside the one that serves, flipped by the one that serves;
    never by both at a time. Until :meth:`flip` it must not write to what is served, nor let go of it.
    """

    def make_ready(self, captured: frozenset[str]) -> None:
        """Do and check everything that can fail, so that :meth:`flip` cannot.

        Parameters
        ----------
        captured : frozenset of str
            Names of tensors whose addresses must stay what they are: their bytes are copied, while the
            others change their memory.

        Raises
        ------
        Exception
            If the flip would not succeed. The served version is untouched.
        """
        ...

    def is_ready(self) -> bool:
        """Whether :meth:`make_ready` has succeeded, so that a flip would flip every tensor."""
        ...

    def flip(self) -> None:
        """Make the staged version the served one. Takes a time that does not depend on how large it is.

        Except for captured tensors, whose bytes are copied. What served before stays in memory, unreachable,
        until :meth:`give_back`, since letting it go takes time.
        """
        ...

    def unflipped(self) -> str | None:
        """Look whether :meth:`flip` was done: return the first tensor that serves something else.

        Asked after the flip, inside the pause: a look at each address, not at the bytes.
        """
        ...

    def give_back(self) -> int:
        """Let go of the memory that does not serve, tensor by tensor; return its bytes. Idempotent."""
        ...


@runtime_checkable
class StageableWeights(Protocol):
    """Weights that can be staged."""

    def stage(self) -> StagedWeights:
        """Begin another version; takes no memory yet."""
        ...


@runtime_checkable
class AvailableMemory(Protocol):
    """Memory that can say how much of it may still be taken."""

    @property
    def shared_by_ranks(self) -> bool:
        """Whether all ranks of the node draw on it, as they do on the host's; not so on a device each."""
        ...

    def available_bytes(self) -> int | None:
        """Bytes that can be taken now without taking them from somebody else; None if that is not known."""
        ...
