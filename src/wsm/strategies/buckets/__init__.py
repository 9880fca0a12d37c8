"""The strategy ``ipc_async``: a trainer on this host streams buckets through shared memory.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_async, source                     the strategy, and where a rank finds its trainer
messages, plan                        what is said; what is in which bucket, and where it passes
marks, patience                       how far each side is; waiting for the other
receiver, conversation                the rank's end; what it says and hears, and how long it waits
incoming                              the memory that bytes come through, from the rank's end
bucket_socket                         the address that both ends meet at
sender, sending                       the trainer's end: all ranks of one version
stream                                what the trainer says to one rank
====================================  ====================================================================
"""
