"""Files as wsm reads and writes them: opened once, checked before they are believed, written whole or not.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
atomic_file                           a file that appears whole or not at all
snapshot_directory                    a directory held open and leased; nothing outside it is ever reached
snapshot_names                        what files are called
shard_source                          a directory with a shard for each rank; the device id in their names
version_file                          ``version.yaml``
file_looks                            whether files that name no version are the same as before
part_file                             one file of tensors, by its format; FastDeploy's pickles without trust
safetensors                           the format that wsm writes: its header, reading ahead, reading, writing
====================================  ====================================================================
"""
