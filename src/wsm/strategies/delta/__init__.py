"""The strategy ``delta``: only what changed since a version that the rank holds.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
strategy, source                      the rank's side, and where it looks
route                                 from what, and over which deltas, a version is reached
reader                                one rank's delta, opened and checked
blocks, codec                         how a change is cut into blocks; their bytes
shard, manifest                       what a rank's delta, and that of all ranks, consists of
names, published                      what files are called; what a directory holds
publish, report                       the trainer's side, and what became of it
staged                                made visible at once, unless what is there already may stand
writer                                one rank's blocks
between                               the delta between two versions that are published already
errors                                what can go wrong in it
====================================  ====================================================================
"""
