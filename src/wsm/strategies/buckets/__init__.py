"""The strategy ``ipc_async``: a trainer on this host streams buckets through shared memory.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_async, source                     the strategy, and where a rank listens
messages, plan                        what is said; what lies where in which bucket
receiver, bucket_socket               the rank's end; the socket that both ends use
sender, sending                       the trainer's end: all ranks of one version
stream                                what the trainer says to one rank
====================================  ====================================================================
"""
