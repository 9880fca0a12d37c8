"""wsm in vLLM: a server serves a whole, proved version, or says why not. Nothing of vLLM is changed.

=======================  ===================================================================================
module                   responsible for
=======================  ===================================================================================
:mod:`.versions`         what a version is for vLLM's loaders: files held open, digested as they are read
:mod:`.node_copy`        its bytes once per node, in memory that the ranks share
:mod:`.extension`        each worker's side: one method, which never raises
:mod:`.fanout`           the server's side: answers to a view, moves to questions
:mod:`.pauses`           vLLM's pause: an update's, a trainer's, or one with an owner and a lease
:mod:`.updates`          the updates of one server, one at a time, and the gate's state
:mod:`.update_journal`   what becomes of updates: receipts, events, metrics
:mod:`.api_servers`      several API servers of one vLLM: one has what wsm knows
:mod:`.engine`           weights that a trainer pushes: vLLM's engines, and what they give to the model
:mod:`.verbs`            trainers' verbs, as their published clients send them
:mod:`.gate`             what stands before vLLM's app, and is answered over HTTP
:mod:`.options`          what vLLM is started with: looked at before a model is loaded
:mod:`.endpoint`         vLLM's endpoint plugin: what vLLM calls, before it listens
=======================  ===================================================================================

torch is imported inside a function, and vLLM nowhere.
"""

from wsm.vllm.extension import WorkerExtension as Worker

__all__ = ["Worker"]
