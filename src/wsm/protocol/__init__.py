"""The protocol of a group: what to write next, given the words one has read. Pure.

No clock, no memory, no I/O: functions from (own state, words seen) to (new state, words to write, next
thing to do). :class:`wsm.Worker` and :class:`wsm.Controller` call them with real words; the tests'
explorer calls the same functions with every order of events that the rules allow.

Read in this order:

==================  ==============================================================================
module              answers
==================  ==============================================================================
:mod:`.view`        what has one participant read?
:mod:`.park`        who is in a later step, who stands where I stand, may I accept?
:mod:`.votes`       may I enter this collective action, will it never happen, has everybody stopped?
:mod:`.rank_state`  what does a rank remember, and what can it be told to do?
:mod:`.phases`      what does a rank look for in each phase of a command, and what follows? The tables
:mod:`.rank`        the walk over these tables: the next thing to do, the outcome of what was done
:mod:`.phase_check` are these tables sound?
:mod:`.decide`      the controller's one decision per command, and when a command is over
:mod:`.takeover`    what a successor does with what a dead controller left
:mod:`.epochs`      how a group gets a new incarnation, and who may join it
:mod:`.restoring`   what is it owed then, and when is that tried again or given up?
==================  ==============================================================================

Beside them: :mod:`.phase_drawing` (the picture and the page of the tables), :mod:`.errors`.

The rules were model-checked before they were written (park and vote, aborts, deadlines, crashes of
ranks and of the controller). Three of them carry everything else:

1. **A command is a sequence number, never a level.** The next one is written only when every rank is
   terminal for the last one.
2. **Words only grow within an epoch**, so that a stale read is an early read, never a wrong one. What
   a later word could hide (a vote that was given, that weights were touched) is repeated in it.
3. **Nothing but a decision or a new epoch ends PARKED, PREPARED or a vote that was given.** An expired
   deadline makes a rank say FAILED where it stands; it never makes it walk away.
"""
