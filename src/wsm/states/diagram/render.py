"""Every file of ``diagrams/``, from the tables and the plans, in one call. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.states.diagram.dialogue import sequence_diagram
from wsm.states.diagram.dot import digraph
from wsm.states.diagram.extract import chart_drawing, joint_drawing
from wsm.states.diagram.markdown import review_table
from wsm.states.diagram.mermaid import state_diagram
from wsm.states.diagram.model import Drawing, PlanSummary, by_name
from wsm.states.diagram.sequences import clear_dialogue, hot_update_dialogue, update_dialogue
from wsm.states.table import CHARTS


def render_all(
    plans: Sequence[PlanSummary] | None = None, *, beside: Sequence[Drawing] = ()
) -> dict[str, str]:
    """Return the text of every file by its name.

    Parameters
    ----------
    plans : sequence of PlanSummary, optional
        One per name of :class:`wsm.states.vocabulary.PlanName`; None draws the plans' names without steps.
    beside : sequence of Drawing
        Other drawings, which this package does not make.

    Returns
    -------
    dict of str to str
        The same for the same tables and plans, on every machine and with every hash seed.

    Raises
    ------
    PlanSummaryError
        If `plans` are not the plans that the tables name, each once.
    """
    named = by_name(plans)
    rendered: dict[str, str] = {}
    for drawing in (*(chart_drawing(chart, named) for chart in CHARTS), joint_drawing(), *beside):
        rendered[f"{drawing.name}.mmd"] = state_diagram(drawing)
        rendered[f"{drawing.name}.dot"] = digraph(drawing)
    rendered["transitions.md"] = review_table(named)
    for dialogue in (clear_dialogue(named), update_dialogue(named), hot_update_dialogue(named)):
        rendered[f"{dialogue.name}.mmd"] = sequence_diagram(dialogue)
    return rendered
