"""What the states look like: drawn from the tables, never by hand.

``extract`` reads the tables into the plain data of ``model``, renderers turn that into text, ``files``
compares and writes. Own renderers instead of the ones in `transitions`: titles, guards, the plan of each
working state, a fixed order, no state drawn as the active one, and the same text with every version.

===================  =========================================================================
module               responsible for
===================  =========================================================================
:mod:`.model`        drawings and plan summaries as data
:mod:`.extract`      from tables to drawings
:mod:`.mermaid`      state diagrams that code hosts render in place
:mod:`.dot`          the same for Graphviz
:mod:`.markdown`     ``transitions.md``, the review table
:mod:`.dialogue`     sequence diagrams as data and as Mermaid
:mod:`.sequences`    what is said in clear, update and hot update
:mod:`.phrases`      the pieces that these have in common
:mod:`.render`       all files in one call
:mod:`.files`        write them, or say how they differ
:mod:`.svg`          pictures, if Graphviz is installed
===================  =========================================================================
"""

from wsm.states.diagram.files import Difference, compare, write
from wsm.states.diagram.model import PlanSummary, StepSummary, summarise
from wsm.states.diagram.render import render_all
from wsm.states.diagram.svg import write_svg

__all__ = [
    "Difference",
    "PlanSummary",
    "StepSummary",
    "compare",
    "render_all",
    "summarise",
    "write",
    "write_svg",
]
