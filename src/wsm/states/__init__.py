"""Everything that decides, pure: the tables of weights, KV cache and commands, and the rules of the group.

No clock, no I/O, no shared memory, no work: functions from (own state, words seen, what happened) to (new
state, words to write, next thing to do). :class:`wsm.Worker` and :class:`wsm.Controller` call them with real
words; the explorer calls the same functions with every order of events that the rules allow. In this order:

======================  ==========================================================================
module                  answers
======================  ==========================================================================
:mod:`.vocabulary`      which states, events and policies are there, and what are their codes?
:mod:`.words`           what does one 64-bit word say, and how is it packed?
:mod:`.plan_key`        what identifies a plan, what is it called, and which one serves a request?
:mod:`.table`           what leads where? Every transition of weights and KV cache, with its theory
:mod:`.joint`           which states stand side by side; which event needs what?
:mod:`.machine`         where is this rank, and may this happen now? The live `transitions` machines
:mod:`.command_events`  which events does a command fire, and what does it do on every way out of it?
:mod:`.view`            what has one participant read, where do all ranks stand, what have they voted for?
:mod:`.phases`          what does a rank remember? The third table: what it looks for, and what follows
:mod:`.rank`            the walk over it, and what its conditions mean: the next thing to do, the outcome
:mod:`.holding`         may a step begin at all? Who holds a group, who releases it, when does a lease end?
:mod:`.decide`          may a command begin, can it be committed, and when is it over?
:mod:`.epochs`          what does a group's new incarnation owe it, and which processes are replaced?
:mod:`.group`           what does a process do for its group next? The table of that side, and its walk
:mod:`.engine_words`    what does FastDeploy's weights word ask, what is done about it, what does it say?
:mod:`.fleet`           what does a replica of a fleet count as, and which digests may be served?
:mod:`.check`           are the tables sound? Which states do they lead to, beside which phase?
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
