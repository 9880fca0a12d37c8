"""What all trainers' sides share, whatever the way: what may be handed over, and what is said of it.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
tensors                               what a trainer may hand over, and what it is told afterwards
torch_tensors                         those of torch as specs and bytes
publisher_lock                        one publisher into a directory at a time
publications                          which versions are there, and which was published last
retention                             retire old versions, but none that may be loaded again
targets                               what a fleet is to serve, beside the versions
====================================  ====================================================================
"""
