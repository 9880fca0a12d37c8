"""Taking in what trainers write: a directory of safetensors files becomes a published version.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
adopt                                 the one call: what a caller names becomes a version, linked or copied
checkpoint                            the trainer's directory: held open, described, digested, unchanged
record                                which content is adopted under which label, over retirements
checkpoint_files                      the transport ``files``: a version whole, for the models' own loaders
====================================  ====================================================================
"""
