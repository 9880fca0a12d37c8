"""What a group is doing, why it does not serve, and who is to blame: one reader, one list of rules, one text.

======================  ==================================================================================
module                  responsible for
======================  ==================================================================================
:mod:`.facts`           what is known about a group at one moment, as plain values
:mod:`.reading`         from a segment, or a copy of one, to the facts, dead or alive, damaged or whole
:mod:`.rules`           the one thing that keeps the group from serving, and why
:mod:`._advice`         what a rule finds, and what it advises: sentences, and the commands in them
:mod:`.rank_progress`   what each rank does for the last command, whom the others wait for
:mod:`.blame`           whose fault it is that a command failed
:mod:`.text`            what each rank does and waits for; all of it as text and as plain values
======================  ==================================================================================
"""

from wsm.status.facts import GroupFacts, GroupStatus, RankFacts, RankStatus
from wsm.status.reading import facts_of_file, read_facts
from wsm.status.text import Explanation, explain, status_line, status_of, status_text

__all__ = [
    "Explanation",
    "GroupFacts",
    "GroupStatus",
    "RankFacts",
    "RankStatus",
    "explain",
    "facts_of_file",
    "read_facts",
    "status_line",
    "status_of",
    "status_text",
]
