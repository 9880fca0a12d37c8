"""Programs on wsm beside the wheel: a clone runs them by ``python -m examples.NAME``, or by their path.

===========  ==========================================================================================
package      what it is
===========  ==========================================================================================
rollout      a reference engine: a small tensor-parallel language model on paddle that lives under wsm
demo         a training loop with reinforcement learning on a live group of that engine
commands     the command lines of both
numpy_loop   a whole engine of numpy under wsm, short enough for a page
ray_fleet    a fleet of such engines on Ray: an actor per replica, and one call for all
torch_loop   the loop of one rank around transformers' ``generate``
vllm_demo    a trainer that dies half way through an update of ``vllm serve``, without wsm and with it
vllm_loop    the same around vLLM's ``LLMEngine.step()``, in one process
===========  ==========================================================================================
"""
