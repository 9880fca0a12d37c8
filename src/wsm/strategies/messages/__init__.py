"""What peers say to each other in framed, length-checked messages, and what goes wrong between them.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
frames                                the envelope: magic, kind, length, digest, and JSON within
vocabulary, fields                    dataclasses to frames and back, with a check of every field
errors                                the errors of every peer that streams
====================================  ====================================================================

No message is known here by name: the protocols that are made of this are those of buckets and of Mooncake.
"""
