"""The strategy ``ipc_snapshot``: versions as files, each rank its shard or a slice of others'.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_snapshot                          the strategy: what was found and opened becomes an offer
source                                where to look
store                                 the one look-up of a version; a shard's files opened and checked
manifest                              what a shard and a version consist of, and what a part says of itself
slice_digests                         what each rank's slices of an adopted version must be
placement                             which slice of which tensor a rank holds
_resliced_shard                       a shard put together from other ranks' shards
publish                               the trainer's side: write, make visible whole, or not at all
====================================  ====================================================================
"""
