"""Taking in what trainers write: a directory of safetensors files becomes a published version.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
adopt                                 the one call: what a caller names becomes a version, linked or copied
deciding                              what it is called, and whether there is anything to do; pure
checkpoint                            the trainer's directory: held open, described, digested, unchanged
record                                which content was adopted under which label, over retirements
configured                            what a group's configuration says of all this
checkpoint_files                      the transport ``files``: a version whole, for the models' own loaders
====================================  ====================================================================
"""
