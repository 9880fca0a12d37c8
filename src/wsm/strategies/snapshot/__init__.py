"""The strategy ``ipc_snapshot``: versions as files, each rank its shard or a slice of others'.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
ipc_snapshot                          the strategy: lookup and reader put together
source, lookup, snapshot_files        where to look, in which directory a shard lies, in which files
shards_present                        all shards of a version
shard_reader, shard_parts             a shard opened and checked, and its parts
part_metadata                         what every part says of itself
manifest, version_manifest            what a shard, and a version of all ranks, consists of
publication_manifest                  what the manifest of all ranks is, of a version or a delta
manifest_files, tensor_table          where they are read; their rows
placement, reslice_plan               which slice of which tensor a rank holds; who holds what it needs
resliced_shard, slice_reader          a shard put together from other ranks' shards
publish, shard_writer, staged_version the trainer's side: write, make visible at once
version_pins                          versions that a rank may load again are not retired
convert                               pickles turned into safetensors, by those who trust them
errors                                what can go wrong in it
====================================  ====================================================================
"""
