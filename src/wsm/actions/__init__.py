"""Units of work in a transition, the plans made of them, and the surfaces of an engine that they act on.

Knows units, not words and not states. What an engine or an action of one's own imports is exported here, and
lies in the public modules:

==================  =====================================================================================
module              answers
==================  =====================================================================================
:mod:`.surfaces`    what must an engine offer?
:mod:`.base`        what is an action, what may it know, and what is a plan of actions?
:mod:`.names`       which actions has wsm?
:mod:`.options`     which facts about an engine, and which actions of its own, decide its plans?
:mod:`.plan`        which actions does an engine need for each transition, in which order, and why?
:mod:`.measuring`   what is measured of an engine?
:mod:`.errors`      what can go wrong?
:mod:`.backends`    which real engines are fitted already?
==================  =====================================================================================

The actions themselves are private, by what they act on: :mod:`._requests`, :mod:`._graphs`,
:mod:`._groups`, :mod:`._weights`, :mod:`._caches` and :mod:`._verify`.
"""

from wsm.actions.base import Action, ActionContext, Plan, SteppedAction
from wsm.actions.options import Addition, PlanOptions
from wsm.actions.plan import derive_plans

__all__ = [
    "Action",
    "ActionContext",
    "Addition",
    "Plan",
    "PlanOptions",
    "SteppedAction",
    "derive_plans",
]
