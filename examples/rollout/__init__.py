"""The reference rollout group: a small tensor-parallel language model on paddle that lives under wsm.

==================================  ======================================================================
modules                             responsible for
==================================  ======================================================================
model                               a package: the model, its sharding, its forward pass
block_pool                          KV blocks: who holds them
request, scheduler                  continuous batching on rank 0
_plan_channel                       what one step does, and how rank 0 tells the others
runner                              all of it put together as :class:`wsm.actions.surfaces.Runner`; which
                                    experts a request's tokens were sent to
worker_process                      one rank as a process
cache_process                       the KV-cache process, where there is one, and what it holds
process_life                        how these processes begin and end, and learn that rank 0 steps
request_socket                      messages, connections and bytes of the request socket
request_service, client             what the messages mean; the other end of the socket, and load
config, run_directory               what a group is told; where its processes meet
supervisor                          the owner of a group, from start to end
rank_processes                      starting and ending the processes of ranks
text_routes, text_bodies            text over HTTP, for trainers
text_requests                       the requests for text that a server has taken
command                             ``python -m examples.rollout``
errors                              what can go wrong in it
==================================  ======================================================================

Importing this package imports nothing else; the modules that compute import paddle.
"""
