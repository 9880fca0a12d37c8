"""The strategy ``ipc``: a trainer on this host shares its tensors' memory, and ranks copy or keep it.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
strategy, source                      the rank's side, and where it looks
metas, _pickled_metas                 the metas files, ours and FastDeploy's
_abandoned                            removes what dead trainers left that no rank can find any more
shared_segment                        shared memory with one owner and leases for its readers
shared_tensors                        the trainer's side: who owns the memory, and until when
shared_device_tensors                 the same for memory on a GPU, which is not copied
====================================  ====================================================================
"""
