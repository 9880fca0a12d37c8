"""The worker's shell: one rank, embedded in the event loop of an inference engine.

==========================  =============================================================================
module                      responsible for
==========================  =============================================================================
:mod:`.worker`              :class:`Worker`: ``poll()``, ``step()``, the path taken while serving; the permit
                            of a step, without which nothing may be computed with the weights
:mod:`._loop`               the slow path, and all that a rank remembers: look at the words, do one thing,
                            tell the protocol how it ended; waits that expire, failures
:mod:`._run`                one command on this rank: its plan's actions one by one, events, ways out, report
:mod:`._hot_run`            the same for a hot update: staged by a thread beside what serves, then flipped
:mod:`._command`            from a command's word and arguments to its run; what is resident between commands
:mod:`._group_words`        this rank's access to the segment: read a view, write words and payloads, wait
:mod:`._attachment`         from a configuration to a participant that has joined, until it leaves
:mod:`._watchdog`           which action the rank is inside of, and the thread that calls a blocked rank out
:mod:`.recording`           what goes into the journal and the log
:mod:`.loading`             from a configuration to the function that an action loads weights with
:mod:`.cache_participant`   :class:`CacheParticipant`: a KV-cache process, which takes part and never steps
:mod:`.errors`              what an embedding loop can be told
==========================  =============================================================================
"""

from wsm.worker.cache_participant import CacheParticipant
from wsm.worker.worker import HOLD, JOIN, SERVE, StepPermit, Turn, Worker

__all__ = ["HOLD", "JOIN", "SERVE", "CacheParticipant", "StepPermit", "Turn", "Worker"]
