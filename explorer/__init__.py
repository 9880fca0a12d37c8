"""Every order of events that some bounds allow, on the real protocol and the real tables, in memory.

A world is a group at one moment: the real packed words, what each process remembers, what is in its memory.
From each world every move is made that can be made: a rank that looks at the words and does what the
protocol tells it, a controller that decides, a successor that takes over, an owner that recovers and repairs,
and an adversary that kills, breaks, delays and gives up. After every move the rules of the group are checked.
Nothing of the protocol is copied here: the moves call the pure functions of :mod:`wsm.states`, as the worker
and the controller do. Read in this order:

========================= ========================================================================
module                    answers
========================= ========================================================================
:mod:`.scope`             how large is the group, how often may each thing happen; which surveys are run?
:mod:`.world`             what is a whole group, as bytes; which groups count as the same?
:mod:`.answers`           what may the protocol answer no participant that looks, and where may no event lead?
:mod:`.admission`         what do callers ask of a hold, what does a caller decide, when does a lease end?
:mod:`.rank_moves`        what can come of what a participant is told, for its words, memory and machines?
:mod:`.controller_moves`  what can the controller, its successor and the owner of the group do?
:mod:`.moves`             all of that, for one world
:mod:`.invariants`        what must hold after every move, and when nothing moves any more?
:mod:`.search`            breadth first, on several processes, and the shortest way back; no circles, a way to
                          rest from everywhere
:mod:`.dialogue`          a way, for people, and as a file that can be gone again
:mod:`.engine_loop`       what can an engine, a trainer and FastDeploy's loop do about one weights word?
:mod:`.control_requests`  and what FastDeploy's control requests about what the ranks hold?
:mod:`.errors`            what can go wrong in an exploration
========================= ========================================================================

``python -m explorer`` (:mod:`.__main__`) is the command line.
"""
