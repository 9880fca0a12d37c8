"""The reference rollout group: a small tensor-parallel language model on paddle that lives under wsm.

=============================  ===========================================================================
modules                        responsible for
=============================  ===========================================================================
shape, sharding                what the model is, and how its weights are split over ranks (no paddle)
model, moe, attention, draft   the forward pass
parallel, exchange             its collectives, and the expert-parallel exchange buffer
parameters, graphs             weights that only a step's permit opens; captured execution
block_pool, paged_cache        KV blocks: who holds them, and their memory
request, scheduler, sampling   continuous batching on rank 0
step_plan, routing_replay      what one step does, and which experts it chose
engine, runner                 all of it put together as :class:`wsm.actions.surfaces.Runner`
=============================  ===========================================================================

Importing this package imports nothing else; the modules that compute import paddle.
"""
