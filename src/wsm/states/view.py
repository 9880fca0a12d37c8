"""What one participant has read of the words of its group. Knows nothing of how it was read.

The words of a view were loaded one after the other and may be stale in any mixture; every rule that
looks at a view is exact under that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wsm.states.words import CommandWord, CommittedWord, StatusWord, StepWord


@dataclass(frozen=True)
class View:
    """One reading of a group's words.

    Parameters
    ----------
    command : CommandWord
        The controller's word.
    steps : sequence of StepWord
        One per rank; helpers have none.
    statuses : sequence of StatusWord
        One per participant: the ranks first, then the helpers.
    committed : CommittedWord
        The last version that the whole group committed; only the controller looks at it.
    """

    command: CommandWord
    steps: Sequence[StepWord]
    statuses: Sequence[StatusWord]
    committed: CommittedWord = field(default_factory=lambda: CommittedWord(0, None))

    def of_command(self, participant: int) -> StatusWord | None:
        """Return the participant's status if it belongs to the command of this view, else None."""
        status = self.statuses[participant]
        if (status.epoch, status.sequence) == (self.command.epoch, self.command.sequence):
            return status
        return None
