"""Files as wsm reads and writes them: opened once, checked before they are believed, written whole or not.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
atomic_file                           a file appears whole or not at all; is it still the same
snapshot_directory                    a directory held open and leased, for a load or until it is loaded again
snapshot_names                        what files are called
shard_source                          a directory with a shard for each rank; the device id in their names
version_file                          ``version.yaml``
part_file                             one file of tensors, by its format; FastDeploy's pickles, converted
safetensors                           the format that wsm writes: its header, reading ahead, reading, writing
====================================  ====================================================================
"""
