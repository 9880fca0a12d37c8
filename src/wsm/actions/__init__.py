"""Units of work in a transition, the plans made of them, and the surfaces of an engine that they act on.

Knows units, not words and not states. Read in this order:

=====================  ==================================================================================
module                 answers
=====================  ==================================================================================
:mod:`.surfaces`       what must an engine offer?
:mod:`.base`           what is an action, and what may it know?
:mod:`.names`          which actions are there?
:mod:`.sequence`       what is a plan, and what does the worker do with it?
:mod:`.options`        which facts about an engine decide its plans?
:mod:`.plan`           which actions does an engine need for each transition?
:mod:`.order`          which order must plans have, and why?
=====================  ==================================================================================

The actions, by what they act on: :mod:`.requests`, :mod:`.cuda_graphs`, :mod:`.deepep`,
:mod:`.process_groups`, :mod:`.weights`, :mod:`.staging` (with :mod:`.staging_memory`, on
:mod:`.staging_surface`), :mod:`.flipping`, :mod:`.kv_cache`, :mod:`.auxiliary`, :mod:`.memory`,
:mod:`.routing_replay`, :mod:`.verify` (with :mod:`.measuring`) and :mod:`.publication`. Real engines are
behind :mod:`.backends`.
"""
