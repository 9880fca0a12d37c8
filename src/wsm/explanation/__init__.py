"""Why a group does not serve: in sentences, and for programs.

===================  ===================================================================================
module               responsible for
===================  ===================================================================================
:mod:`.facts`        what is known about a group at one moment, as plain values
:mod:`.reading`      from a copy of a segment to the facts, dead or alive, damaged or whole
:mod:`.ranks`        what one rank is doing, and for whom it waits
:mod:`.verdicts`     the one thing that keeps the group from serving, and what to do about it
:mod:`.explanation`  all of it as text and as plain values
===================  ===================================================================================
"""

from wsm.explanation.explanation import Explanation, explain
from wsm.explanation.facts import GroupFacts, RankFacts
from wsm.explanation.reading import facts_of_file, read_facts

__all__ = ["Explanation", "GroupFacts", "RankFacts", "explain", "facts_of_file", "read_facts"]
