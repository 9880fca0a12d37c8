"""What all trainers' sides share, whatever the way: what may be handed over, and what is said of it.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
tensors                               what a trainer may hand over, and what it is told afterwards
publications                          which versions are there, and which was published last
retention                             one publisher at a time; which old versions it retires
targets                               what a fleet is to serve, beside the versions
====================================  ====================================================================
"""
