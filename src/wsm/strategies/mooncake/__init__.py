"""The transport over Mooncake's engine, both ends.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
transport, reader                     the rank's end, and its reads ahead
configured                            what a configuration says of it
engine, plan                          the engine as wsm uses it; where tensors lie, and how they are read
publisher, memory                     the trainer's side; the memory that it lets ranks read
desk, lease, leases                   both ends of a lease on that memory
messages, addresses                   what is said about it, and where
errors                                what can go wrong in it
====================================  ====================================================================
"""
