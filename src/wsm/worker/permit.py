"""The permit of a step: whoever computes with the weights must show it, and it opens the step.

A permit opens only while this rank holds a verified, committed version. An engine that reaches its
parameters through :meth:`StepPermit.check` alone cannot run a forward pass over cleared weights,
whatever bug its scheduler has.

Opening a step while the group serves costs one store: RUNNING words of consecutive steps are
consecutive integers, so the next word is the last one plus one. Whatever is not that simple (the first
step after a command, a join) is asked of the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from wsm.states.words import MAX_STEP
from wsm.worker.errors import PermitExpiredError

#: Opens a step the slow way; returns the stored word, the version, and whether the next one is simple.
OpenSlowly = Callable[[], tuple[int, int, bool]]


@final
class StepPermit:
    """The context manager of a worker's steps, and the right to compute inside them.

    One object serves all steps of a worker, one after the other.

    Attributes
    ----------
    rank : int
        Whose.
    version : int
        The version that makes every token of this step.
    word : int
        This rank's step word, as it was stored last.
    """

    __slots__ = (
        "_break",
        "_memory",
        "_open",
        "_open_slowly",
        "_own_word",
        "_simple_until",
        "rank",
        "version",
        "word",
    )

    def __init__(
        self,
        rank: int,
        memory: memoryview[int],
        own_word: int,
        open_slowly: OpenSlowly,
        break_step: Callable[[BaseException], None],
    ) -> None:
        self.rank = rank
        self.version = -1
        self._memory = memory
        self._own_word = own_word
        self._open_slowly = open_slowly
        self._break = break_step
        self._open = False
        self.word = 0
        self._simple_until = 0

    @property
    def step(self) -> int:
        """The number of the step in this epoch."""
        return self.word & MAX_STEP

    def check(self) -> None:
        """Assert that a step is open.

        Raises
        ------
        RefusedError
            If the ``with`` block has been left.
        """
        if not self._open:
            raise PermitExpiredError(rank=self.rank, step=self.step)

    def end_simple_steps(self, stepped_to: Callable[[int], None]) -> None:
        """Let the driver open the next step, after it was told the last one that was opened without it."""
        if self._simple_until:
            stepped_to(self.step)
            self._simple_until = 0

    def __enter__(self) -> StepPermit:
        """Store RUNNING; everything collective of the step comes after it."""
        word = self.word + 1
        if word < self._simple_until:
            self.word = self._memory[self._own_word] = word
        else:
            self.word, self.version, simple = self._open_slowly()
            # Beyond its last step number a word would run over into the field next to it.
            self._simple_until = self.word | MAX_STEP if simple else 0
        self._open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the step; store BROKEN if it raised."""
        self._open = False
        if error is not None:
            self._break(error)
