"""The strategies ``rsync`` and ``gdr``: versions that a transport moves.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
transport                             what a transport is
by_version                            the strategies for a rank's shard, and for a whole checkpoint
checkpoint_transfer                   FastDeploy's closed package as a transport, and its options
configured                            what a configuration says of all this, and of transfer modes
stream_manifest                       the promise that travels before tensors that come one by one
_foreign                              what a package that wsm does not know runs in, and hands over
====================================  ====================================================================
"""
