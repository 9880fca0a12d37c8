"""Words in shared memory: what the processes of one group say to each other, and how they wait for it.

Knows words, bytes, locks and processes. Knows no states, no actions and no paddle; needs nothing but
the standard library. Start reading at :mod:`wsm.signals.layout` (what is where in a segment), then
:mod:`wsm.signals.segment` (who creates, attaches, adopts and removes one).
"""
