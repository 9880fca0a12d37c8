"""All staging actions of one hot update, one after the other, in the staging thread.

None of them waits for a peer or for the serving loop, whose steps may be slow; the loop takes in afterwards
what began and ended when. Touches no words, no journal and no machine.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple

from wsm.actions.base import Action, ActionContext
from wsm.clock import Clock
from wsm.worker.errors import CommandAbortedError, StagingExhaustedError


class Moment(NamedTuple):
    """When an action began, or ended well; what an action raises ends the run."""

    action: Action
    at_ns: int
    is_end: bool


class StagingRun:
    """The work that is handed to the staging thread.

    Parameters
    ----------
    actions : sequence of Action
        In order.
    context : ActionContext
        Handed to each; its ``cancelled`` ends the run between two of them.
    clock : Clock
        For the moments.
    """

    def __init__(self, actions: Sequence[Action], context: ActionContext, clock: Clock) -> None:
        self._actions = actions
        self._context = context
        self._clock = clock
        self._moments: SimpleQueue[Moment] = SimpleQueue()

    def __call__(self) -> None:
        """Run them all.

        Raises
        ------
        CommandAbortedError
            If it is not wanted any more: what was staged is not whole.
        StagingExhaustedError
            If memory has run out.
        Exception
            Whatever else an action raises.
        """
        for action in self._actions:
            if self._context.cancelled():
                raise CommandAbortedError(rank=self._context.rank, action=action.name)
            action.precondition(self._context)
            self._moments.put(Moment(action, self._clock.monotonic_ns(), is_end=False))
            self._run(action)
            self._moments.put(Moment(action, self._clock.monotonic_ns(), is_end=True))

    def news(self) -> list[Moment]:
        """Return the moments since the last call, in order. For another thread; does not block."""
        return [self._moments.get_nowait() for _ in range(self._moments.qsize())]

    def _run(self, action: Action) -> None:
        try:
            action.run(self._context)
            action.probe(self._context)
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            cause = str(error) or type(error).__name__
            raise StagingExhaustedError(rank=self._context.rank, action=action.name, cause=cause) from error
