"""What peers say to each other in framed, length-checked messages, how these travel, and what goes wrong.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
frames                                the envelope: magic, kind, length, digest, and JSON within
message_types, fields                 dataclasses to frames and back, with a check of every field
zmtp                                  ZMQ's wire protocol, as far as whole messages need it
connection                            one connection that messages go through
listener, caller                      the side that listens, with bounds on all that comes; the one that calls
errors                                the errors of every peer that streams
====================================  ====================================================================

No message is known here by name: the protocols that are made of this are those of buckets and of Mooncake.
"""
