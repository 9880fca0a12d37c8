"""The strategies ``rsync`` and ``gdr``: versions that a transport moves.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
transport                             what a transport is
by_version                            the strategies for a rank's shard, and for a whole checkpoint
_transfer_modes                       by which way a version travels
checkpoint_transfer                   FastDeploy's closed package as a transport
checkpoint_transfer_options           its options
configured                            what a configuration says of all this
stream_manifest                       the promise that travels before tensors that come one by one
_batches                              small ones of them taken several at a time, and the memory of that
_foreign                              what a package that wsm does not know runs in, and hands over
====================================  ====================================================================
"""
