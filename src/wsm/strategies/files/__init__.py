"""Files as wsm reads and writes them: opened once, checked before they are believed, written whole or not.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
atomic_file                           a file that appears whole or not at all
snapshot_directory                    a directory held open; nothing outside it is ever reached
snapshot_names, device_id             what files are called; the device id in the names
shard_source                          a directory with a shard for each rank, under such names
version_file                          ``version.yaml``
part_file                             one file of tensors, by its format
safetensors_header, safetensors_file  the format that wsm writes: its header, reading it
safetensors_writer                    writing it
leases                                kernel locks that say who reads a file
pickle_file, paddle_state             the format that FastDeploy wrote, read without trusting it; or trusting
readahead                             telling the kernel what is read next
====================================  ====================================================================
"""
