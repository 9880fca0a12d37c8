"""What peers say to each other in framed, length-checked messages, how these travel, and what goes wrong.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
message_types, fields                 dataclasses to framed JSON and back, with a check of every field
connection                            one connection that messages go through, in ZMQ's wire protocol
listener, caller                      the side that listens, with bounds on all that comes; the one that calls
errors                                the errors of every peer that streams
====================================  ====================================================================

No message is known here by name: the protocols that are made of this are those of buckets and of Mooncake.
"""
