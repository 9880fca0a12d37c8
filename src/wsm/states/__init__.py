"""Where the weights and the KV cache of a rank are, and what may happen to them. Pure.

No clock, no I/O, no words, no work: states, events, and the rules that join them. Read in this order:

======================  ==========================================================================
module                  answers
======================  ==========================================================================
:mod:`.vocabulary`      which states, events and policies are there, and what are their codes?
:mod:`.table`           what leads where? Every transition, with the theory of operation
:mod:`.joint`           which states of the two stand side by side, which event needs what of the other?
:mod:`.command_events`  which events does a command fire, on every way through it and out of it?
:mod:`.halves`          which plan does it mean for weights and KV cache, given what is held?
:mod:`.machine`         where is this rank, and may this happen now? The live machines
:mod:`.journal`         what happened? The bounded record
:mod:`.replay`          can it have happened? A journal held against the tables
:mod:`.check`           are the tables sound? Static checks
:mod:`.diagram`         what does it look like? Mermaid, DOT and the review table
======================  ==========================================================================

Beside them: :mod:`.chart` (the shape of a table), :mod:`.record` (one transition), :mod:`.entry` (one line of
a journal), :mod:`.explore` (every joint state), :mod:`.rank_history` (the rules of replay), :mod:`.errors`.

This package imports nothing by itself: the vocabulary is needed everywhere, the machines in one place.
"""
