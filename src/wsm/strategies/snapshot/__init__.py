"""The strategy ``ipc_snapshot``: versions as files, each rank its shard or a slice of others'.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_snapshot                          the strategy: lookup and reader put together
source, lookup                        where to look; in which directory and files a shard lies
_shard_reader                         a shard opened and checked, part by part
manifest                              what a shard consists of, and what every part says of itself
version_manifest                      what a version of all ranks consists of, and where that is read
placement, _reslice_plan              which slice of which tensor a rank holds; which ranks hold what it needs
_resliced_shard, _slice_reader        a shard put together from other ranks' shards
publish, _shard_writer                the trainer's side: write, make visible at once
version_pins                          versions that a rank may load again are not retired
convert                               pickles turned into safetensors, by those who trust them
errors                                what can go wrong in it
====================================  ====================================================================
"""
