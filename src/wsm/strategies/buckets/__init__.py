"""The strategy ``ipc_async``: a trainer on this host streams buckets through shared memory.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_async, source                     the strategy, and how it reads a stream; where it finds its trainer
wire                                  what is said, and how tensors are cut into buckets
channel                               the sockets of both ends, of pyzmq
sender                                the trainer's end: all ranks of one version, and one of them
====================================  ====================================================================
"""
