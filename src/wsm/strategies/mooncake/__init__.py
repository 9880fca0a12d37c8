"""The transport over Mooncake's engine, both ends.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
mooncake_transport                    the rank's end, and its reads ahead
source                                what a configuration says of it
transfer_engine                       the engine as wsm uses it
publisher                             the trainer's side: memory that it lets ranks read, and leases on it
_lease_messages                       what is said about it, and where
====================================  ====================================================================
"""
