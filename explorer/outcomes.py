"""What a participant's moves lead to: collected one by one, with the rule that a move breaks.

Knows nothing of the moves themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from explorer.errors import broken_by
from explorer.invariants import check_beside, check_words
from explorer.participant import Participant
from explorer.scope import Budget


class Outcome(NamedTuple):
    """One move of one participant.

    Attributes
    ----------
    label : str
        What happens, as the rest of a sentence that begins with who.
    after : Participant or None
        What becomes of the participant; None if the move breaks a rule.
    spends : Budget or None
        What the adversary, or whoever gives the group work, pays for it; None: it happens by itself.
    broken : str
        Which rule it breaks, and how; empty: none.
    """

    label: str
    after: Participant | None
    spends: Budget | None = None
    broken: str = ""


class Outcomes:
    """Collects the moves of one participant in one world.

    Parameters
    ----------
    before : Participant
        As it is.
    affordable : frozenset of Budget
        What is left to be spent.
    """

    def __init__(self, before: Participant, affordable: frozenset[Budget]) -> None:
        self.found: list[Outcome] = []
        self._before = before
        self._affordable = affordable

    def add(self, label: str, act: Callable[[], Participant | None], spends: Budget | None = None) -> None:
        """Try a move. One that changes nothing, or that cannot be afforded, is no move."""
        if spends is not None and spends not in self._affordable:
            return
        try:
            after = act()
            if after is None or after == self._before:
                return
            check_words(self._before, after)
            if after.state is not self._before.state or after.joint is not self._before.joint:
                check_beside(after)
        except Exception as error:  # noqa: BLE001 - whatever is raised here: a world that can be reached breaks it
            self.found.append(Outcome(label, None, spends, broken_by(error)))
        else:
            self.found.append(Outcome(label, after, spends))

    def affords(self, budget: Budget) -> bool:
        """Whether something is left of a budget."""
        return budget in self._affordable
