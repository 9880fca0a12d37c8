"""The strategy ``delta``: only what changed since a version that the rank holds.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
strategy                              deltas opened, and by which way a rank reaches a version
source                                where it looks; what can be wrong with deltas
_blocks, _codec                       how a change is cut into blocks; their bytes
_manifest                             what a rank's delta, and that of all ranks, consists of; their names
publish                               the trainer's side: all ranks' blocks, made visible at once
====================================  ====================================================================
"""
