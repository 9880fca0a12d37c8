"""The strategies ``rsync`` and ``gdr``: versions that a transport moves.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
by_version                            both strategies, what a transport is, and what a configuration says
checkpoint_transfer                   FastDeploy's closed package as a transport, and its options
stream_manifest                       the promise that travels before tensors that come one by one
_foreign                              what a package that wsm does not know runs in, and hands over
====================================  ====================================================================
"""
