"""The status of a group: what it does, why it does not serve, which rank is the culprit, what to do.

======================  ==================================================================================
module                  responsible for
======================  ==================================================================================
:mod:`.facts`           what is known about a group at one moment, what was asked of it, who is done with that
:mod:`.reading`         from a segment, or a copy of one, to the facts, dead or alive, damaged or whole
:mod:`.rules`           the one thing that keeps the group from serving, why it is so, and what to do
:mod:`.culprits`        which rank waits for which, whom all wait for, whose fault it is that a command failed
:mod:`.text`            what each rank does and waits for; all of it as text and as plain values
======================  ==================================================================================
"""

from wsm.status.facts import GroupStatus, RankStatus
from wsm.status.reading import facts_of_file, read_facts
from wsm.status.text import Explanation, explain, status_line, status_of, status_text

__all__ = [
    "Explanation",
    "GroupStatus",
    "RankStatus",
    "explain",
    "facts_of_file",
    "read_facts",
    "status_line",
    "status_of",
    "status_text",
]
