"""The strategy ``ipc_async``: a trainer on this host streams buckets through shared memory.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_async, source                     the strategy, and how it reads a stream; where it finds its trainer
_conversation, _incoming_window       the rank's end: what it says and hears, and its window
_bucket_messages                      what is said
_bucket_plan                          what is in which bucket, where it passes, and how far each side is
_bucket_socket                        the address that both ends meet at, and waiting for the other
sender                                the trainer's end: all ranks of one version
_stream                               what the trainer says to one rank
====================================  ====================================================================
"""
