"""The reference group's model: what it is, how its weights are split over ranks, and its forward pass.

==================================  ======================================================================
modules                             responsible for
==================================  ======================================================================
shape, sharding                     what the model is, and how its weights are split over ranks (no paddle)
transformer, moe, attention, draft  the forward pass; attention over the memory of a paged KV cache
parallel                            its collectives, and the expert-parallel exchange buffer
parameters, graphs                  weights that only a step's permit opens, and their loaders; graphs
sampling                            how a token is chosen (no paddle)
==================================  ======================================================================
"""
