"""Everything that decides, pure: the tables of weights, KV cache and commands, and the rules of the group.

No clock, no I/O, no shared memory, no work: functions from (own state, words seen, what happened) to (new
state, words to write, next thing to do). :class:`wsm.Worker` and :class:`wsm.Controller` call them with real
words; the explorer calls the same functions with every order of events that the rules allow. In this order:

======================  ==========================================================================
module                  answers
======================  ==========================================================================
:mod:`.vocabulary`      which states, events and policies are there, and what are their codes?
:mod:`.words`           what does one 64-bit word say, and how is it packed?
:mod:`.table`           what leads where? Every transition of weights and KV cache, with its theory
:mod:`.joint`           which states stand side by side, and beside which phase; which event needs what?
:mod:`.machine`         where is this rank, and may this happen now? The live `transitions` machines
:mod:`.command_events`  which events does a command fire, on every way through it and out of it?
:mod:`.halves`          which plan does it mean for weights and KV cache, given what is held?
:mod:`.view`            what has one participant read?
:mod:`.park`            who is in a later step, who stands where I stand, may I accept?
:mod:`.votes`           may I enter this collective action, will it never happen, has everybody stopped?
:mod:`.rank_state`      what does a rank remember, and what can it be told to do?
:mod:`.phases`          the third table: what does a rank look for in each phase, and what follows?
:mod:`.rank`            the walk over it: the next thing to do, the outcome of what was done
:mod:`.group`           what does a group hold, may a command begin, has it any work?
:mod:`.decide`          the controller's one decision per command, and when a command is over
:mod:`.takeover`        what a successor does with what a dead controller left
:mod:`.epochs`          how a group gets a new incarnation, and who may join it
:mod:`.restoring`       what is it owed then, and when is that tried again or given up?
:mod:`.replacing`       whose process does the keeper replace, and when does it try again?
:mod:`.journal`         what happened? Entries, their lines of JSON, and the bounded record
:mod:`.replay`          can it have happened? A journal held against the tables
:mod:`.rerun`           does the core answer today what it answered then? Its inputs, recorded and asked again
:mod:`.spans`           what was when, and for how long? Journals as spans of time, and as a Chrome trace
:mod:`.check`           are the three tables sound, each alone and all together?
======================  ==========================================================================

Beside them: :mod:`.errors`. What the tables look like is drawn by ``wsm diagrams``.

The rules of the group were model-checked before they were written (park and vote, aborts, deadlines,
crashes of ranks and of the controller). Three of them carry everything else:

1. **A command is a sequence number, never a level.** The next one is written only when every rank is
   terminal for the last one.
2. **Words only grow within an epoch**, so that a stale read is an early read, never a wrong one. What
   a later word could hide (a vote that was given, that weights were touched) is repeated in it.
3. **Nothing but a decision or a new epoch ends PARKED, PREPARED or a vote that was given.** An expired
   deadline makes a rank say FAILED where it stands; it never makes it walk away.

This package imports nothing by itself: the vocabulary is needed everywhere, the machines in one place.
"""
