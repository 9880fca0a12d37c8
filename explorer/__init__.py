"""Every order of events that some bounds allow, on the real protocol and the real tables, in memory.

A world is a group at one moment: the real packed words, what each process remembers, what is in its memory.
From each world every move is made that somebody could make: a rank that looks at the words and does what
the protocol tells it, a controller that decides, a successor that takes over, and an adversary that kills,
breaks, delays and gives up. After every move the rules of the group are checked. Nothing of the protocol is
copied here: the moves call :mod:`wsm.states` and :func:`wsm.states.joint.step`, as the worker and the
controller do.

Read in this order:

=================== ==============================================================================
module              answers
=================== ==============================================================================
:mod:`.scope`       how large is the group, and how often may each thing happen?
:mod:`.participant` what is one participant?
:mod:`.desk`        what is the controller?
:mod:`.world`       what is a whole group, as bytes; which groups count as the same?
:mod:`.looking`     what does the protocol tell a participant that reads these words?
:mod:`.situation`   what matters for what it does next?
:mod:`.deeds`       what can come of what it was told?
:mod:`.work`        what does that do to its memory and its machines?
:mod:`.probing`     what must the tables refuse there?
:mod:`.company`     what must it do with others: leave a step, leave a collective action, come to life?
:mod:`.adversary`   who dies, and who reads late?
:mod:`.clerk`       how does a controller store a word?
:mod:`.controller_moves`  what can the controller and its successor do?
:mod:`.recovery_moves`    what can the group's owner do when a rank is gone?
:mod:`.moves`       all of that, for one world
:mod:`.invariants`  what must hold after every move?
:mod:`.rest`        what must hold when nothing moves any more?
:mod:`.search`      breadth first, and the shortest way back
:mod:`.partitioned` the same on several processes (:mod:`.partition` is one of them)
:mod:`.graph`       no circles, and a way to rest from everywhere
:mod:`.trace`       a way, for people
:mod:`.scenario`    a way, as a file that can be gone again
:mod:`.surveys`     which explorations are run by tests and by ``make explore``
=================== ==============================================================================
"""
