"""The strategy ``ipc_snapshot``: versions as files, each rank its shard or a slice of others'.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_snapshot                          the strategy: what was found and opened becomes an offer
source, store                         where to look; the one look-up of a version
_shard_parts                          a shard's files opened and checked
manifest                              what a shard and a version consist of, and what a part says of itself
slice_digests                         what each rank's slices of an adopted version must be
placement, _reslice_plan              which slice of which tensor a rank holds; which ranks hold what it needs
_resliced_shard                       a shard put together from other ranks' shards
publish                               the trainer's side: write, make visible whole, or not at all
version_pins                          versions that a rank may load again are not retired
convert                               pickles turned into safetensors, by those who trust them
====================================  ====================================================================
"""
