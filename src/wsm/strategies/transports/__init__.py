"""The strategies ``rsync`` and ``gdr``: versions that a transport moves.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
transport                             what a transport is
by_version                            what strategies over one share
rsync                                 the strategy for a rank's shard
gdr, transfer_modes                   the same for a whole checkpoint; by which way it travels
checkpoint_transfer                   FastDeploy's closed package as a transport
checkpoint_transfer_options           its options
configured                            what a configuration says of all this
tensor_stream, stream_manifest        tensors that come one by one, and the promise that travels first
package_buffers                       what a package holds of them meanwhile
batches                               small ones of them taken several at a time
foreign_thread, foreign_tensors       what a package that wsm does not know runs in, and hands over
errors                                what can go wrong in it
====================================  ====================================================================
"""
