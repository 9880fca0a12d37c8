"""Words in shared memory: what the processes of one group say to each other, and how they wait for it.

Knows bytes, locks and processes, and stores the words of :mod:`wsm.states.words`. Knows no machines, no
actions and no paddle; needs nothing but the standard library. Start reading at :mod:`wsm.signals.layout`
(what is where in a segment), then :mod:`wsm.signals.segment` (who creates, attaches, adopts and removes one).
"""
