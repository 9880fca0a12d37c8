"""The worker's shell: one rank, embedded in the event loop of an inference engine.

==========================  =============================================================================
module                      responsible for
==========================  =============================================================================
:mod:`.worker`              :class:`Worker`: ``poll()``, ``step()``; the path taken while serving
:mod:`.participation`       what a participant is made of, put together and joined
:mod:`.driver`              the slow path: look at the words, do one thing, tell the protocol what came of it
:mod:`.patience`            how long a rank waits, for whom, and what it says when that was too long
:mod:`.cache_participant`   :class:`CacheParticipant`: a KV-cache process, which takes part and never steps
:mod:`.cache_word`          FastDeploy's ``kv_cache_status``, shown and answered by that process
:mod:`.execution`           one command on this rank: legality, plan, state machines, undo; knows no words
:mod:`.holding`             what a rank holds between commands: its weights' facts, whose blocks it has kept
:mod:`.execution_factory`   from a command's word and arguments to its execution
:mod:`.pause`               how long a rank could not serve
:mod:`.reporting`           what a rank writes into its payload slots
:mod:`.watch`               which action the rank is inside of, for other processes and for the watchdog
:mod:`.watchdog`            the thread that calls a blocked rank out of what cannot end any more
:mod:`.permit`              the permit of one step, without which nothing may be computed with the weights
:mod:`.group_words`         this rank's view of the segment: read a View, write a word, wait
:mod:`.attaching`           from a configuration to a registered slot in the right segment
:mod:`.recording`           what goes into the journal and the log
:mod:`.loading`             from a configuration to the function that an action loads weights with
:mod:`.errors`              what an embedding loop can be told
==========================  =============================================================================
"""

from wsm.worker.cache_participant import CacheParticipant
from wsm.worker.permit import StepPermit
from wsm.worker.worker import HOLD, JOIN, SERVE, Turn, Worker

__all__ = ["HOLD", "JOIN", "SERVE", "CacheParticipant", "StepPermit", "Turn", "Worker"]
